"""The crash schedules that reviews and the ring brought up, each with the tests that keep it from coming back."""

from __future__ import annotations

RING = "tests/simulation/test_ring.py"
SCHEDULES = "tests/simulation/test_schedules.py"
NAMED = "tests/simulation/test_named.py"
FENCING = "tests/simulation/test_fencing.py"
CLOCK = "tests/unit/agents/test_fetcher_clock.py"
SHARD = "tests/unit/frontier/test_shard.py"
END = "tests/unit/frontier/test_end.py"
EXPORTER = "tests/agents/test_exporter.py"
CLI = "tests/integration/test_cli.py"
BROKEN = "tests/integration/test_broken_messages.py"

NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    # lost or swallowed
    "effects-after-close": ((SCHEDULES, "test_effects_after_close"),),
    "fetched-in-memory": ((SCHEDULES, "test_fetched_in_memory"),),
    "late-batch-of-old-owner": (
        (FENCING, "test_late_batch_of_old_owner"), ("tests/integration/test_state.py", "test_late_batch_of_old_owner"),
    ),
    "old-owner-returns": ((FENCING, "test_old_owner_returns"),),
    "memory-ahead-of-log": ((SCHEDULES, "test_memory_ahead_of_log"),),
    "batch-hole": ((FENCING, "test_batch_hole"),),
    "redrive-swallowed": ((SCHEDULES, "test_redrive_swallowed"),),
    "seed-again": ((SCHEDULES, "test_seed_again"),),
    "double-failure": ((SCHEDULES, "test_double_failure"),),
    "success-after-failure": ((SCHEDULES, "test_success_after_failure"),),
    "lru-before-delivery": (
        ("tests/agents/test_packs.py", "test_a_turn_that_is_not_delivered_is_not_remembered"),
        (RING, "test_every_mutant_is_caught"),
    ),
    "unknown-crawl-race": ((SCHEDULES, "test_unknown_crawl_race"),),
    "retention": ((SCHEDULES, "test_retention"), (SCHEDULES, "test_a_page_that_is_lost_is_fetched_again")),
    "poison-across-processes": (
        ("tests/unit/io/test_isolation.py", "test_tries_are_counted_across_processes"),
        ("tests/agents/test_parser.py", "test_killers_are_given_up_and_the_partition_moves_on"),
    ),
    "oversized": (
        (BROKEN, "test_large_messages"), ("tests/agents/test_packs.py", "test_packs_are_bounded_in_items_and_bytes"),
        ("tests/unit/policy/test_robots.py", "test_500_kib_are_read_and_a_cut_line_is_not"),
    ),
    "resurrection": (
        ("tests/unit/state/test_shelf.py", "test_a_store_that_may_have_missed_deletes_is_rebuilt"),
    ),
    # politeness
    "restart-after-429": ((SCHEDULES, "test_restart_after_429"), (NAMED, "test_restart_after_429")),
    "stale-orders": (
        (CLOCK, "test_a_new_owner_gives_old_orders_back_and_waits_with_new_ones"), (NAMED, "test_stale_orders"),
    ),
    "evicted-but-alive": (
        (CLOCK, "test_what_runs_for_a_lost_partition_is_aborted"), (NAMED, "test_evicted_but_alive"),
    ),
    "frozen-owner": (
        (CLOCK, "test_an_owner_that_is_not_confirmed_starts_nothing_and_ends_what_runs"),
        ("tests/integration/test_delivery_faults.py", "test_a_frozen_worker_is_not_confirmed_when_it_thaws"),
        (NAMED, "test_frozen_owner"),
    ),
    "silent-resend": (("tests/integration/test_http_client.py", "test_silent_resend_is_off"),),
    "robots-redirect": (
        ("tests/unit/agents/test_fetcher.py", "test_a_robots_redirect_to_another_host_is_left_to_the_frontier"),
        (NAMED, "test_robots_redirect"),
    ),
    "lost-hop": (
        (SCHEDULES, "test_lost_hop"), (SCHEDULES, "test_hops_that_are_sent_again_too_soon"),
        ("tests/unit/frontier/test_guests.py", "test_a_hop_is_sent_again_until_it_is_answered"),
    ),
    "late-rules": ((CLOCK, "test_late_rules_hold_for_orders_of_older_rules"), (NAMED, "test_late_rules")),
    "two-crawls": (
        (CLOCK, "test_of_two_crawls_on_one_host_the_strictest_rule_holds"),
        ("tests/simulation/test_crawls.py", "test_two_crawls_on_one_host_keep_the_stricter_delay"),
    ),
    "clock-skew": ((SCHEDULES, "test_clock_skew"), (NAMED, "test_clock_skew")),
    "rebalance-storm": (
        (CLOCK, "test_what_runs_goes_on_when_its_partition_comes_back"), (NAMED, "test_rebalance_storm"),
    ),
    # the end
    "late-page": ((SCHEDULES, "test_late_page"),),
    "seed-in-flight": ((NAMED, "test_seed_in_flight"),),
    "silent-shard": ((END, "test_a_silent_shard_is_not_zero"), (NAMED, "test_silent_shard")),
    "owner-change-between-rounds": (
        (END, "test_owner_change_between_rounds"), (NAMED, "test_progress_without_epoch_ends_too_early"),
    ),
    "nothing-new-but-time": ((SCHEDULES, "test_nothing_new_but_time"),),
    "dead-hosts": ((SCHEDULES, "test_dead_hosts"),),
    "marker-at-tail": (
        (FENCING, "test_marker_at_tail"), ("tests/integration/test_state.py", "test_marker_at_tail"),
    ),
    "export-behind": (
        (NAMED, "test_export_behind"),
        (CLI, "test_the_demonstration_ends_with_its_exact_pages_and_leaves_nothing_running"),
    ),
    # state
    "stale-index": ((SHARD, "test_an_index_entry_is_a_hint"),),
    "counter-drift": ((FENCING, "test_counter_drift"), (SCHEDULES, "test_memory_ahead_of_log")),
    "depth-lowered": (("tests/simulation/test_crawls.py", "test_depth_is_the_shortest_way"),),
    "two-exporters": ((EXPORTER, "test_a_second_exporter_on_the_folder_is_refused"),),
    "exporter-replay": ((EXPORTER, "test_nothing_is_written_twice_whatever_is_read_again"),),
    "rolling-upgrade": (
        (BROKEN, "test_a_newer_schema_stops_the_worker_and_loses_nothing"),
        ("tests/integration/test_admin.py", "test_another_partition_count_is_refused_and_nothing_is_made"),
    ),
    "pack-of-slow": ((CLOCK, "test_a_slow_host_holds_up_nobody_and_a_full_process_waits"),),
    # found by the ring
    "held-for-nothing": ((SCHEDULES, "test_held_for_nothing"),),
    "parked-crawls-count": ((SCHEDULES, "test_parked_crawls_count"),),
}  # fmt: skip
"""Name → (file, test)."""
