"""The loop: next event, core decides, effects are carried out."""
