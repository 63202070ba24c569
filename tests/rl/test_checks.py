"""Which test holds each of the forty checks of trainer_checks.md: every number is here, and every test exists."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
CHECKS = {
    1: ("rl/test_update.py", "test_several_updates_a_step_each_have_the_gradient_of_their_own_groups"),
    2: ("rl/test_update.py", "test_several_updates_a_step_each_have_the_gradient_of_their_own_groups"),
    3: ("rl/test_update.py", "test_gradient_is_the_same_for_every_micro_batch_size_padded_or_packed"),
    4: ("rl/test_update.py", "test_a_duplicated_batch_has_the_same_gradient"),
    5: ("rl/test_update.py", "test_the_first_inner_step_is_on_policy"),
    6: ("pipelines/test_engines.py", "test_sampler_and_trainer_agree_at_the_sampling_temperature"),
    7: ("rl/test_tokens.py", "test_top_p_and_top_k_cannot_be_set"),
    8: ("rl/test_correction.py", "test_long_sequences_with_tiny_noise_report_what_is_kept"),
    9: ("rl/test_correction.py", "test_sequence_ratio_is_the_exponential_of_the_sum"),
    10: ("rl/test_update.py", "test_nothing_to_train_moves_nothing"),
    11: ("rl/test_kl.py", "test_a_step_reduces_a_large_kl"),
    12: ("rl/test_update.py", "test_whether_a_dead_group_is_pulled_to_the_reference_is_an_option"),
    13: ("rl/test_advantages.py", "test_one_differing_reward_stays_bounded"),
    14: ("rl/test_losses.py", "test_gspo_warns_of_a_clip_that_never_acts"),
    15: ("rl/test_correction.py", "test_token_level_by_hand"),
    16: ("rl/test_tokens.py", "test_pad_equals_end_and_cut_completions"),
    17: ("rl/test_tokens.py", "test_left_padding_right_padding_packing_or_none"),
    18: ("rl/test_tokens.py", "test_a_template_that_writes_bos_has_it_once"),
    19: ("rl/test_tokens.py", "test_trained_ids_are_the_sampled_ids_of_their_own_prompt"),
    20: ("rl/test_tokens.py", "test_an_id_beyond_the_tokenizer_has_no_verdict"),
    21: ("rl/test_update.py", "test_every_sequence_is_trained_once"),
    22: ("pipelines/test_verify.py", "test_the_same_verdicts_from_a_thread_and_from_async_code"),
    23: ("pipelines/test_verify.py", "test_a_pathological_item_ends_by_its_deadline_and_harms_no_other"),
    24: ("rl/test_advantages.py", "test_nan_leaves_the_baseline_and_gets_zero"),
    25: ("rl/test_tokens.py", "test_a_tower_of_powers_is_refused_without_evaluation"),
    26: ("pipelines/test_engines.py", "test_new_weights_reach_the_engine_whole"),
    27: ("rl/test_trainer.py", "test_sampler_and_trainer_agree_at_every_step_and_checkpoints_load"),
    28: ("pipelines/test_engines.py", "test_new_weights_reach_the_engine_whole"),
    29: ("rl/test_update.py", "test_lora_trains_and_merges_its_additions_alone"),
    30: ("rl/test_trainer.py", "test_sampler_and_trainer_agree_at_every_step_and_checkpoints_load"),
    31: ("rl/test_curriculum.py", "test_stale_groups_are_dropped_and_counted"),
    32: ("rl/test_resume.py", "test_killed_while_a_checkpoint_is_written"),
    33: ("rl/test_tokens.py", "test_trained_ids_are_the_sampled_ids_of_their_own_prompt"),
    34: ("rl/test_trainer.py", "test_a_problem_set_without_any_gradient_goes_on_and_says_so"),
    35: ("rl/test_curriculum.py", "test_end_of_data_hands_out_the_surplus"),
    36: ("rl/test_curriculum.py", "test_constant_groups_are_dropped"),
    37: ("rl/test_curriculum.py", "test_batch_size_is_constant_and_surplus_waits"),
    38: ("rl/test_ranks.py", "test_two_ranks_have_the_gradient_and_the_weights_of_one"),
    39: ("rl/test_advantages.py", "test_group_of_one_is_zero_with_a_warning"),
    40: ("rl/test_update.py", "test_memory_does_not_grow_over_five_hundred_steps"),
}
"""27 without a sleep: without a GPU vLLM has none, and the trainer calls none; sync is checked at every step."""


def test_every_check_has_a_test() -> None:
    assert sorted(CHECKS) == list(range(1, 41))
    for file, name in CHECKS.values():
        assert f"\ndef {name}(" in (TESTS / file).read_text(encoding="utf-8"), name


def test_the_list_has_forty(shared: Path) -> None:
    text = (shared / "cases" / "trainer_checks.md").read_text(encoding="utf-8")
    assert [int(line.split(".")[0]) for line in text.splitlines() if line[:1].isdigit()] == sorted(CHECKS)
