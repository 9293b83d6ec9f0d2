"""RIGHT: programs without a mistake, by name; each function gives audit's arguments."""

from tests.support.heldout import (
    batches,
    fine_tuning,
    generative,
    layers,
    optimizers,
    policies,
    sequences,
    trainers,
    updates,
    vision,
)

# right, but no one rank computes the same: a rank draws, or climbs, by its own
NOT_AS_ONE_RANK = {"vae_of_own_noise", "sam_of_own_rows"}
PROGRAMS = [
    trainers.accelerate, trainers.hf_trainer, trainers.keras_fit, trainers.timm_loop,
    trainers.lightning, trainers.optimizer_wrapper,
    vision.detection, vision.segmentation_dice, vision.metric_learning,
    vision.clip_image_text, vision.moco, vision.byol, vision.distillation,
    generative.vae, generative.vae_of_own_noise, generative.wgan_gp, generative.gan,
    generative.diffusion,
    policies.reinforce, policies.ppo, policies.actor_critic,
    sequences.speech_ctc, sequences.seq2seq, sequences.list_of_sequences,
    sequences.sparse_embedding, sequences.mixture_of_experts, fine_tuning.lora,
    fine_tuning.adapters,
    updates.sam, updates.sam_of_own_rows, updates.lookahead, updates.swa,
    updates.gradient_centralisation, updates.local_sgd, updates.weighted_losses,
    optimizers.clip_each_layer, optimizers.adaptive_clip, optimizers.adafactor,
    optimizers.manual_zero, optimizers.loss_scaling,
    layers.quantisation_aware, layers.spectral_norm, layers.weight_norm,
    layers.gradient_checkpointing, layers.complex_parameters, layers.parameter_lists,
    batches.dataclasses_in_and_out, batches.graph, batches.loader_of_its_own,
    layers.own_sync_batch_norm,
]
RIGHT = {program.__name__: program for program in PROGRAMS}
