"""Grade a class: every submission's answers against the checks, one bad file or not.

    grade_all   many notebooks, several at a time; a record for each
    grade_one   one notebook

A record is plain: {"student", "problem_set", "score", "max_score", "exercises": {name:
[points, message]}, "words": {grade id: text}, "code": {grade id: source}, "edited":
[grade id, ...], "note"}. Its points are those for code; `words` are the texts to read.
"""

from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing

import torch
from tqdm import tqdm

from manual_dp.school.exercise import exercises, questions
from manual_dp.school.grader.journal import Journal
from manual_dp.school.grader.submission import identify, read, untouched
from manual_dp.school.grader.worker import Worker, grade

LONGEST = 20_000  # letters of an answer that are kept for its page


def grade_all(paths, journal=None, jobs=2):
    """Return the records of `paths`, in their order, and how many are new.

    journal: path of a file that remembers; what it holds is not graded again.
    jobs: how many answers run at a time.
    """
    paths = [str(path) for path in paths]
    with closing(Journal(journal)) as memory:
        todo = [path for path in dict.fromkeys(paths) if not memory.recall(path)]
        with closing(_in_parallel(todo, max(1, min(jobs, len(todo))))) as finished:
            for path, record in tqdm(finished, "grading", len(todo), unit="notebook",
                                     leave=False, disable=None):
                memory.add(path, record)
        return [{**memory.find(path), "file": path} for path in paths], len(todo)


def _in_parallel(paths, jobs):
    """Yield (path, record) as they come; leave no process behind, whatever happens."""
    workers = [Worker() for _ in range(jobs)]
    free, known = list(workers), {}

    def work(path):
        worker = free.pop()
        try:
            return path, grade_one(path, worker, known)
        finally:
            free.append(worker)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the truths are small, and the answers need the cores
    pool = ThreadPoolExecutor(jobs)
    try:
        for future in as_completed([pool.submit(work, path) for path in paths]):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.stop()
        pool.shutdown()
        for worker in workers:
            worker.close()
        torch.set_num_threads(before)


def grade_one(path, worker, known=None):
    """Return the record of the notebook at `path`; a bad file gets 0 and a note.

    known: verdicts on answers, by their text: see worker.grade.
    """
    record = {"student": "", "problem_set": "", "score": 0, "max_score": 0,
              "exercises": {}, "words": {}, "code": {}, "edited": [], "note": ""}
    try:
        folder, record["problem_set"] = identify(path)
        record["student"] = folder.name
        wanted = exercises(record["problem_set"])
        record["max_score"] = sum(exercise.points for exercise in wanted.values())
        record["exercises"] = {name: [0, "Not graded."] for name in wanted}
        record |= read(path)
    except ValueError as error:
        return {**record, "note": str(error)}
    for name, exercise in wanted.items():
        message = grade(worker, exercise, record["code"], known)
        points = getattr(message, "points", 0) if message else exercise.points
        record["exercises"][name] = [points, message or ""]
    record["score"] = sum(points for points, _ in record["exercises"].values())
    record["code"] = {grade_id: source[:LONGEST] for grade_id, source in
                      record["code"].items() if any(grade_id in exercise.cells
                                                    for exercise in wanted.values())}
    record["words"] = {grade_id: text[:LONGEST] for grade_id, text in
                       record["words"].items() if not untouched(text)
                       and grade_id in questions(record["problem_set"])}
    record["edited"] = [name[:60] for name in record["edited"][:30]]
    return record
