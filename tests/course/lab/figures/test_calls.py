from xml.etree import ElementTree

from course.lab.figures import calls

SVG = "{http://www.w3.org/2000/svg}"
RIGHT = [[("step 1", 1.0, 41.0), ("step 2", 2.0, 52.0)],
         [("step 1", 40.0, 41.0), ("step 2", 50.0, 52.0)]]
SKIPPED = [[("step 1", 1.0, 51.0), ("step 2", 2.0, 62.0)],
           [("step 2", 50.0, 51.0), ("step 3", 60.0, 62.0)]]
SHORT = [[("step 1", 1.0, 51.0), ("step 2", 2.0, 2.0)], [("step 2", 50.0, 51.0)]]


def words(picture):
    return [text.text for text in ElementTree.fromstring(picture.text).iter(SVG + "text")]


def test_every_call_and_the_sum_of_each_column_are_written():
    assert {"call 1", "call 2", "step 1: 1", "step 2: 2", "step 1: 40", "step 2: 50",
            "sum 41", "sum 52"} <= {*words(calls.draw(RIGHT))}


def test_a_column_of_different_steps_is_marked_and_one_of_equal_steps_is_not():
    assert {"sum 51, of different steps", "sum 62, of different steps"} <= {
        *words(calls.draw(SKIPPED))}
    assert calls.draw(SKIPPED).text.count(calls.WARN) == 4  # a line and a sum each
    assert calls.WARN not in calls.draw(RIGHT).text


def test_calls_that_meet_stand_in_one_column():
    root = ElementTree.fromstring(calls.draw(SKIPPED).text)
    at = {text.text: float(text.get("x")) for text in root.iter(SVG + "text")}
    assert at["step 1: 1"] == at["step 2: 50"] < at["step 2: 2"] == at["step 3: 60"]


def test_a_rank_that_made_fewer_calls_has_an_empty_place_and_there_is_no_sum():
    drawn = words(calls.draw(SHORT))
    assert drawn.count("no call") == drawn.count("no sum: a rank is missing") == 1
    assert "sum 2" not in drawn
    assert "no call" not in words(calls.draw(RIGHT))


def test_the_title_counts_the_columns_that_mix():
    assert "0 of them mix" in calls.draw(RIGHT).title
    assert "2 of them mix" in calls.draw(SKIPPED).title
    assert "1 of them mix" in calls.draw(SHORT).title
