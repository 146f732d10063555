"""The last lines of every process, kept apart."""

from vllm_supervisor.core.tails import CHARACTERS, LINE_CHARACTERS, LINES, OTHERS, PROCESSES, Tails, process_of


def test_a_line_belongs_to_the_process_of_its_prefix():
    assert process_of("(Worker_TP3 pid=4711) INFO 11-30 hello") == "Worker_TP3-4711"
    assert process_of("\x1b[1;36m(EngineCore pid=12)\x1b[0;0m INFO hello") == "EngineCore-12"
    assert process_of("(VllmWorker rank=0 pid=99) hello") == "VllmWorker_rank_0-99"
    assert process_of("(RayWorkerWrapper pid=7, ip=10.0.0.1) hello") == "RayWorkerWrapper-7"
    assert process_of("INFO: Application startup complete.") == "main"
    assert process_of("(not a prefix) hello") == "main"
    assert "/" not in process_of("(a/../b pid=1) x")


def test_one_that_floods_hides_no_other():
    tails = Tails()
    tails.add("(Worker_TP0 pid=1) the cause")
    for number in range(3 * LINES):
        tails.add(f"(Worker_TP1 pid=2) flood {number}")
    kept = tails.by_process()
    assert kept["Worker_TP0-1"] == ["(Worker_TP0 pid=1) the cause"]
    assert len(kept["Worker_TP1-2"]) == LINES
    assert kept["Worker_TP1-2"][-1].endswith(f"flood {3 * LINES - 1}")


def test_memory_is_bounded_by_characters_and_processes():
    tails = Tails()
    for number in range(3000):
        tails.add(f"(Worker_TP1 pid=2) {number} " + "x" * 10_000)
    kept = tails.by_process()["Worker_TP1-2"]
    assert sum(map(len, kept)) <= CHARACTERS
    assert max(map(len, kept)) == LINE_CHARACTERS
    for pid in range(10 * PROCESSES):
        tails.add(f"(Worker pid={pid}) x")
    assert len(tails.by_process()) <= PROCESSES + 1
    assert len(tails.by_process()[OTHERS]) > PROCESSES


def test_all_together_come_in_the_order_in_which_they_were_printed():
    tails = Tails()
    tails.extend(["a", "(W pid=1) b", "c", "(W pid=2) d"])
    assert tails.last(3) == ["(W pid=1) b", "c", "(W pid=2) d"]
    assert tails.last(0) == []


def test_what_is_carried_over_hides_no_process_either():
    tails = Tails()
    tails.add("(EngineCore pid=9) what it said once")
    for number in range(2 * LINES):
        tails.add(f"(Worker_TP0 pid=1) flood {number}")
        tails.add(f"(Worker_TP1 pid=2) flood {number}")
        tails.add(f"flood {number}")
    again = Tails()
    again.extend(tails.all())
    assert again.by_process() == tails.by_process()
    assert again.by_process()["EngineCore-9"] == ["(EngineCore pid=9) what it said once"]
