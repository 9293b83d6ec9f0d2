"""BROKEN: the same programs, each with one mistake, and the codes that name it."""

import functools

from tests.support.heldout import generative, policies, trainers, vision

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
    (generative.vae, "own_rows_of_noise_drawn_alike", "random-same"),
    (generative.vae, "divided_by_all_rows", "averaged-twice", "factor"),
    (generative.vae_of_own_noise, "seeded_alike_in_each_step", "random-same"),
    (generative.wgan_gp, "critic_never_averaged", "not-synchronised"),
    (generative.wgan_gp, "generator_averaged_again", "averaged-twice"),
    (generative.gan, "noise_drawn_alike", "random-same"),
    (generative.gan, "judge_not_through_its_wrapper", "not-synchronised"),
    (generative.gan, "generator_stepped_on_rank_0", "replicas-differ"),
    (generative.diffusion, "times_drawn_alike", "random-same"),
    (generative.diffusion, "weights_of_own_rows", "local", "uneven-shards"),
    (policies.reinforce, "returns_normalised_over_own_rows", "local"),
    (policies.reinforce, "mean_over_own_steps", "uneven-shards"),
    (policies.ppo, "gains_normalised_over_own_rows", "local"),
    (policies.ppo, "stops_by_own_rows", "hang", "unequal-batches"),
    (policies.actor_critic, "each_rank_its_rate", "rates-differ"),
    (policies.actor_critic, "value_never_averaged", "not-synchronised"),
]
BROKEN = {f"{program.__name__}__{mistake}": (codes, functools.partial(program, mistake))
          for program, mistake, *codes in MISTAKES}
