"""Wrong answers by name, a file for each problem set; see test_wrong_answers.py."""
