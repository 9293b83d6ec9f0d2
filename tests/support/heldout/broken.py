"""BROKEN: the same programs, each with one mistake, and the codes that name it."""

import functools

from tests.support.heldout import trainers, vision

# program, mistake, the codes of which one is to be found
MISTAKES = [
    (trainers.accelerate, "model_not_wrapped", "not-synchronised"),
    (trainers.accelerate, "no_sync_around_the_last", "not-synchronised"),
    (trainers.accelerate, "divided_by_all_ranks_micro_batches",
     "averaged-twice", "factor"),
    (trainers.hf_trainer, "not_times_world_size", "averaged-twice", "factor"),
    (trainers.hf_trainer, "tokens_of_own_rank", "uneven-shards"),
    (trainers.keras_fit, "never_sent_at_start", "start-differs"),
    (trainers.keras_fit, "added_not_averaged", "sum"),
    (trainers.timm_loop, "schedule_counts_ranks", "learning-rate"),
    (trainers.timm_loop, "running_mean_on_rank_0", "state-differs", "buffers"),
    (trainers.lightning, "decay_by_rank", "settings"),
    (trainers.lightning, "clipped_before_the_sum", "clip"),
    (trainers.lightning, "clipped_on_rank_0", "clip"),
    (trainers.optimizer_wrapper, "forgets_that_it_has_averaged", "averaged-twice"),
    (trainers.optimizer_wrapper, "believes_it_has_averaged", "not-synchronised"),
    (vision.detection, "boxes_of_own_rank", "uneven-shards", "local"),
    (vision.detection, "rank_without_boxes_does_not_add", "mismatch", "hang"),
    (vision.detection, "not_divided_by_world_size", "averaged-twice", "factor"),
    (vision.segmentation_dice, "dice_of_own_rows", "local"),
    (vision.segmentation_dice, "added_in_place", "gradient", "local"),
    (vision.metric_learning, "own_rows_only", "local"),
    (vision.metric_learning, "gathered_without_gradient", "gradient", "local"),
    (vision.clip_image_text, "own_rows_only", "local"),
    (vision.clip_image_text, "labels_not_moved_by_rank", "labels", "gradient"),
    (vision.clip_image_text, "scale_clamped_on_rank_0", "weights-changed"),
    (vision.moco, "running_mean_on_rank_0", "state-differs", "weights-changed"),
    (vision.moco, "own_keys_queued", "buffers", "state-differs"),
    (vision.byol, "target_copied_before_the_broadcast", "start-differs",
     "state-differs"),
    (vision.byol, "lr_by_own_rows", "learning-rate"),
    (vision.distillation, "teacher_by_rank", "start-differs", "state-differs"),
    (vision.distillation, "rank_0_leaves_eval", "modes"),
]
BROKEN = {f"{program.__name__}__{mistake}": (codes, functools.partial(program, mistake))
          for program, mistake, *codes in MISTAKES}
