"""What restart, snapshot and upgrade share: the runner of their steps, the steps themselves, and who follows them."""
