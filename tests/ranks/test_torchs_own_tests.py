"""torch's own tests of its DDP, run with ours: what each of them says, in a table.

torch ships these tests in its wheel (tests/support/torchs_tests.py runs one). A test counts
if torch's DDP passes it on the CPU, in the same ranks: that is tried too, each time. Ours
then passes it as well, or says in words what it does not offer.
"""

import contextlib
import re

import pytest
import torch

from manual_dp.ranks import RankError, Ranks

PINNED = "2.13.0"  # the torch that the table is complete for
LOAD = "from tests.support import torchs_tests"

# What comes out, as a pattern, and of which tests. An error is one of ours that helps:
# torch raises one too, in its own words, and its tests ask for these.
TABLE = {
    "passes": [
        "test_DistributedDataParallelCPU",
        "test_DistributedDataParallelCPU_grad_is_view",
        "test_DistributedDataParallel_with_amp_and_grad_is_view",
        "test_accumulate_gradients_no_sync",
        "test_accumulate_gradients_no_sync_grad_is_view",
        "test_compute_bucket_assignment_by_size_sparse_error_without_logger",
        "test_ddp_broadcast_buffer",
        "test_ddp_create_graph",
        "test_ddp_forward_backward_hook",
        "test_ddp_model_diff_num_params_across_ranks",
        "test_ddp_namedtuple",
        "test_ddp_zero_output_features",
        "test_grads_same_across_ranks_with_no_sync",
        "test_output_unused_in_loss_dict_module",
        "test_output_unused_in_loss_tuple_module",
        "test_post_localSGD_optimizer_parity",
        "test_post_localSGD_optimizer_parity_grad_is_view",
        "test_post_localSGD_optimizer_parity_with_hierarchical_sgd",
        "test_post_localSGD_optimizer_parity_with_hierarchical_sgd_grad_is_view",
        "test_stateless_api_with_ddp",
        "test_undefined_grad_parity_unused_parameters",
    ],
    "ValueError: the module has no parameter that wants a gradient": [
        "test_DistributedDataParallel_requires_grad",
    ],
    r"RuntimeError: backward did not reach net2\.weight; if that is meant, .*": [
        "test_ddp_unused_params_rebuild_buckets_exception",
    ],
    r"RuntimeError: backward did not reach sub_module\.embedding_net\.embedding\.weight, "
    r"sub_module\.embedding_net\.lin\.weight, .*; if that is meant, .*": [
        "test_ddp_multiple_nested_unused_params_error",
    ],
    # arguments
    "not offered: bucket_cap_mb_list": ["test_ddp_bucket_cap_mb_list"],
    "not offered: broadcast_buffers": [
        "test_ddp_broadcast_buffers_deprecation_warning",
        "test_ddp_new_tensor_in_fwd",
        "test_ddp_new_tensor_in_fwd_static_graph",
    ],
    "not offered: device_mesh": ["test_ddp_device_mesh_initialization"],
    "not offered: forward_sync_buffers": [
        "test_ddp_init_sync_buffers_with_forward_sync_buffers_false",
        "test_ddp_join_respects_forward_sync_buffers_false",
    ],
    "not offered: skip_all_reduce_unused_params": [
        "test_skip_all_reduce_unused_parameters",
    ],
    "not offered: static_graph": [
        "test_ddp_returns_tensor_with_no_grad",
        "test_ddp_shared_grad_acc_unused_params",
        "test_ddp_static_graph_nested_types",
        "test_invalid_static_graph",
        "test_static_graph_multi_forward",
    ],
    "not offered: _set_static_graph": ["test_static_graph_api_cpu"],
    # ranks with different numbers of batches
    "not offered: join": [
        "test_ddp_grad_div_uneven_inputs",
        "test_ddp_join_model_equivalence",
        "test_ddp_uneven_input_exception",
        "test_ddp_uneven_input_join_disable",
    ],
    # communication hooks
    "not offered: register_comm_hook": [
        "test_accumulate_gradients_no_sync_allreduce_hook",
        "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
        "test_ddp_hook_parity_allreduce",
        "test_ddp_hook_parity_allreduce_process_group",
        "test_ddp_python_error_logged",
    ],
    "not offered: _register_buffer_comm_hook": [
        "test_ddp_broadcast_buffer_via_hook",
        "test_ddp_buffer_hook_allreduce",
        "test_ddp_buffer_hook_allreduce_return_future",
    ],
    "not offered: an optimizer in backward": [
        "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false",
    ],
    "not offered: parameters to ignore": [
        "test_ddp_apply_optim_in_backward_ignored_params",
        "test_ddp_ignore_params_arg",
        "test_ddp_multiple_nested_unused_params_err_ignore_params",
        "test_ddp_native_mixed_precision_ignored_params",
        "test_get_data_parallel_params",
    ],
    # the inside of torch's DDP
    "not offered: _build_params_for_reducer": [
        "test_ddp_build_debug_param_to_name_mapping",
        "test_ddp_build_debug_param_to_name_mapping_requires_grad",
    ],
    "not offered: _get_ddp_logging_data": [
        "test_ddp_comm_hook_logging",
        "test_different_graph_across_ranks",
    ],
    "not offered: _remove_autograd_hooks": ["test_ddp_remove_autograd_hooks"],
    "not offered: _set_ddp_runtime_logging_sample_rate": ["test_ddp_logging_data_cpu"],
    "not offered: _set_ddp_sink_clone": ["test_ddp_sink_noclone"],
    "not offered: logger": [
        "test_compute_bucket_assignment_by_size_sparse_error_with_logger",
    ],
    "not offered: process_group": [
        "test_ddp_sync_module_states",
        "test_verify_model_across_rank_with_logger",
        "test_verify_model_across_rank_without_logger",
    ],
    "not offered: reducer": [
        "test_ddp_control_flow_different_across_ranks",
        "test_ddp_control_flow_same_across_ranks",
        "test_detect_ddp_is_actually_static",
    ],
}
ROWS = [(name, expected) for expected, names in TABLE.items() for name in names]

DOES_NOT_COUNT = {
    "torch's DDP takes SyncBatchNorm on GPUs only": [
        "test_DistributedDataParallel_SyncBatchNorm",
        "test_DistributedDataParallel_SyncBatchNorm_2D_Input",
        "test_DistributedDataParallel_SyncBatchNorm_Channels_Last",
        "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value",
        "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient",
        "test_DistributedDataParallel_SyncBatchNorm_No_Affine",
        "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process",
        "test_DistributedDataParallel_SyncBatchNorm_half",
        "test_ddp_inference",
        "test_ddp_sync_bn_training_vs_eval",
        "test_ddp_uneven_inputs_stop_iteration_sync_bn",
        "test_sync_bn_logged",
    ],
    "torch's DDP needs a GPU for it in another way: streams, events, numbers of GPUs": [
        "test_DistributedDataParallel_non_default_stream",
        "test_ddp_compile_static_graph",
        "test_ddp_device",
        "test_ddp_logging_data_gpu",
        "test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none",
        "test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none",
        "test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none",
        "test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none",
        "test_ddp_profiling_execution_trace",
    ],
    "torch skips it everywhere, and its DDP does not pass it here": [
        "test_ddp_has_finalized",
        "test_ddp_hook_pickling_powerSGD",
    ],
    "it passes by luck: rank 0 removes a file that the others may still have to read": [
        "test_post_localSGD_optimizer_step_reload",
    ],
    "it asks for a broadcast that torch's DDP calls when it sorts its buckets anew": [
        "test_ddp_profiling_autograd_profiler",
        "test_ddp_profiling_torch_profiler",
    ],
    "it takes torch's DDP seconds to minutes, and a row of the table asks the same": [
        "test_DistributedDataParallel",
        "test_ddp_apply_optim_in_backward",
        "test_ddp_hook_parity_post_localSGD",
        "test_ddp_hook_parity_powerSGD",
        "test_ddp_model_diff_shape_across_ranks",
        "test_ddp_uneven_inputs",
    ],
}


def not_this_torch(words):
    """Fail with the torch that the table is for; skip with another, which may differ."""
    pinned = torch.__version__.partition("+")[0] == PINNED
    (pytest.fail if pinned else pytest.skip)(f"torch {torch.__version__} {words}")


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def wheel(ranks):
    """Return the names of the tests that this torch has."""
    try:
        ranks.run(LOAD, timeout=240)  # it imports half of torch: 8 s on a quiet machine
    except RankError as error:
        not_this_torch(f"has no tests of DDP that can be loaded: {error}")
    names, _ = ranks.run("torchs_tests.names()")
    return set(names)


def outcome(ranks, name, kind):
    """Return what each rank says of the test."""
    ranks.run(LOAD, timeout=240)  # after a test that hung, the ranks are new
    return ranks.run(f"torchs_tests.outcome({name!r}, torchs_tests.{kind})")


def end(ranks):
    """End the ranks, so that the next test gets new ones, which are in step."""
    with contextlib.suppress(RankError):
        ranks.run("exit()")


# Half a minute, a third of it until torch's tests are imported. Only they see whether
# ours does what those expect who know torch's DDP from inside, in models of their own.
@pytest.mark.parametrize("name, expected", ROWS, ids=[name for name, _ in ROWS])
def test_ours_does_in_torchs_test_what_the_table_says(ranks, wheel, name, expected):
    if name not in wheel:
        not_this_torch(f"has no {name}: take it out of the table")
    theirs = outcome(ranks, name, "Theirs")
    if theirs != ["passes"] * 2:
        end(ranks)
        if not torch.cuda.is_available() and "driver" in str(theirs):
            pytest.skip("torch's own test needs the GPU for which this torch was built")
        not_this_torch(f"does not pass {name} here, take it out of the table: {theirs}")
    ours = outcome(ranks, name, "Ours")
    if not all(re.fullmatch(expected, text, re.DOTALL) for text in ours):
        end(ranks)
        pytest.fail(f"{name}: the table says {expected!r}, the ranks say {ours}")


def test_every_test_of_torchs_that_makes_a_ddp_has_its_place(wheel):
    listed = [name for name, _ in ROWS]
    for names in DOES_NOT_COUNT.values():
        listed += names
    assert len(listed) == len(set(listed))
    if new := wheel - set(listed):
        not_this_torch(f"has tests that no table here names: {sorted(new)}")
    if gone := set(listed) - wheel:
        not_this_torch(f"has no {sorted(gone)}: take them out of the tables")
