"""The crash schedules that reviews and the ring brought up, each with the tests that keep it from coming back."""

from __future__ import annotations

RING = "tests/simulation/test_ring.py"
SCHEDULES = "tests/simulation/test_schedules.py"
NAMED = "tests/simulation/test_named.py"
ASKED = "tests/simulation/test_named_crawls.py"
CRAWLS = "tests/simulation/test_crawls.py"
FENCING = "tests/simulation/test_fencing.py"
CLOCK = "tests/unit/agents/test_fetcher_clock.py"
SHARD = "tests/unit/frontier/test_shard.py"
END = "tests/unit/frontier/test_end.py"
EXPORTER = "tests/agents/test_exporter.py"
CLI = "tests/integration/test_cli.py"
BROKEN = "tests/integration/test_broken_messages.py"
STATE = "tests/integration/test_state.py"
RELEASE = "tests/unit/frontier/test_release.py"
SWEEPING = "tests/unit/frontier/test_sweeping.py"

NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    # lost or swallowed
    "effects-after-close": ((SCHEDULES, "test_effects_after_close"),),
    "fetched-in-memory": ((SCHEDULES, "test_fetched_in_memory"),),
    "late-batch-of-old-owner": (
        (FENCING, "test_late_batch_of_old_owner"), (STATE, "test_late_batch_of_old_owner"),
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
        (CRAWLS, "test_two_crawls_on_one_host_keep_the_stricter_delay"),
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
        (END, "test_owner_change_between_rounds"), (NAMED, "test_owner_change_between_rounds"),
        (NAMED, "test_progress_without_epoch_ends_too_early"),
    ),
    "nothing-new-but-time": ((SCHEDULES, "test_nothing_new_but_time"),),
    "dead-hosts": ((SCHEDULES, "test_dead_hosts"),),
    "marker-at-tail": (
        (FENCING, "test_marker_at_tail"), (STATE, "test_marker_at_tail"),
    ),
    "export-behind": (
        (NAMED, "test_export_behind"),
        (CLI, "test_the_demonstration_ends_with_its_exact_pages_and_leaves_nothing_running"),
    ),
    # state
    "stale-index": ((SHARD, "test_an_index_entry_is_a_hint"),),
    "counter-drift": ((FENCING, "test_counter_drift"), (SCHEDULES, "test_memory_ahead_of_log")),
    "depth-lowered": ((CRAWLS, "test_depth_is_the_shortest_way"),),
    "two-exporters": ((EXPORTER, "test_a_second_exporter_on_the_folder_is_refused"),),
    "exporter-replay": ((EXPORTER, "test_nothing_is_written_twice_whatever_is_read_again"),),
    "rolling-upgrade": (
        (BROKEN, "test_a_newer_schema_stops_the_worker_and_loses_nothing"),
        ("tests/integration/test_admin.py", "test_another_partition_count_is_refused_and_nothing_is_made"),
    ),
    "pack-of-slow": ((CLOCK, "test_a_slow_host_holds_up_nobody_and_a_full_process_waits"),),
    # what is promised (design, section 3)
    "commit-before-persist": ((RING, "test_every_mutant_is_caught"),),
    "page-before-outcome": (
        ("tests/unit/agents/test_fetcher.py",
         "test_an_outcome_waits_until_its_page_is_durable_and_the_ack_for_the_outcome"),
    ),
    "seed-read-twice": ((CRAWLS, "test_a_seed_read_twice_is_one_visit"),),
    "all-at-once": ((ASKED, "test_all_at_once"),),
    "orders-of-a-former-owner": (
        (ASKED, "test_orders_of_a_former_owner"), (RING, "test_every_mutant_is_caught"),
    ),
    "bad-message": ((BROKEN, "test_every_broken_message_is_one_failure_and_the_crawl_goes_on"),),
    # the frontier (design, section 4)
    "order-unanswered": ((RELEASE, "test_unanswered_orders_go_out_again"),),
    "restart-with-orders-out": (
        (RELEASE, "test_a_restart_releases_again_what_was_out"),
        (CRAWLS, "test_a_new_owner_asks_again_only_for_what_was_not_answered"),
    ),
    "order-given-back": ((RELEASE, "test_a_deferred_order_costs_nothing"),),
    "robots-once": ((CRAWLS, "test_robots_is_asked_once_for_an_origin"),),
    "breaker-opens": ((RELEASE, "test_five_failures_open_the_breaker_and_one_probe_goes_at_a_time"),),
    "two-updates": (
        (ASKED, "test_two_updates"),
        ("tests/integration/test_rules.py", "test_of_two_updates_at_once_one_wins_and_the_other_is_told"),
    ),
    "paused-with-orders-out": (
        (ASKED, "test_paused_with_orders_out"), (CLOCK, "test_orders_of_a_crawl_that_stopped_go_back"),
    ),
    "cancelled-with-orders-out": ((ASKED, "test_cancelled_with_orders_out"),),
    "forgotten-with-orders-out": (
        (ASKED, "test_forgotten_with_orders_out"),
        ("tests/simulation/test_clearing.py", "test_what_is_forgotten_during_a_crawl_is_gone_in_the_end"),
    ),
    "forgotten-after-a-take-over": (
        (ASKED, "test_forgotten_after_a_take_over"),
        ("tests/unit/frontier/test_late_answers.py",
         "test_an_answer_that_a_former_owner_had_ordered_brings_nothing_back"),
    ),
    "window-shuts": (
        (ASKED, "test_window_shuts_with_orders_out"),
        ("tests/unit/frontier/test_rules.py",
         "test_nothing_is_released_after_a_window_has_shut_and_it_costs_no_attempt"),
    ),
    "budgets-over-shards": (
        (ASKED, "test_budgets_over_shards_and_crashes"), (CRAWLS, "test_a_page_limit_holds_over_shards_and_crashes"),
    ),
    "visits-through-crashes": (
        (ASKED, "test_visits_through_crashes"),
        ("tests/simulation/test_recrawls.py", "test_every_url_is_visited_as_often_as_there_are_rounds"),
    ),
    "shorter-way-after-validators": ((ASKED, "test_shorter_way_after_validators"),),
    "sitemaps-through-crashes": ((ASKED, "test_sitemaps_through_crashes"),),
    "one-pace-for-a-domain": (
        (ASKED, "test_one_pace_for_a_domain"),
        ("tests/integration/test_admin.py", "test_the_politeness_key_is_pinned"),
    ),
    "learned-delay": ((ASKED, "test_learned_delay_survives"),),
    "crawls-share-a-host": (
        (ASKED, "test_crawls_share_a_host"),
        ("tests/unit/frontier/test_shares.py", "test_three_crawls_get_a_third_each"),
    ),
    "low-priority": (("tests/unit/frontier/test_priority.py", "test_nothing_starves"),),
    "page-expires-twice": ((ASKED, "test_page_expires_twice"),),
    "rows-expire": (
        (ASKED, "test_rows_of_finished_crawls_expire"),
        ("tests/simulation/test_clearing.py", "test_no_row_is_left_of_a_crawl_whose_time_is_over"),
    ),
    "late-candidates": (
        (CRAWLS, "test_late_candidates_of_an_ended_crawl_stay_out"),
        (SWEEPING, "test_a_seed_that_comes_too_late_is_told_so_and_expires_with_its_crawl"),
    ),
    "refetch-seed": ((CRAWLS, "test_a_refetch_seed_opens_the_next_visit"),),
    # state (design, section 7)
    "disk-lost": ((ASKED, "test_disks_are_lost"),),
    "zombie-writes": ((FENCING, "test_an_owner_that_did_not_notice_cannot_write"),),
    "late-marker": ((FENCING, "test_a_late_marker_makes_the_owner_claim_again"),),
    "put-cut-short": ((FENCING, "test_a_cancelled_put_may_still_land_and_is_found_by_the_next_claim"),),
    "idle-owner": ((STATE, "test_an_idle_owner_finds_a_late_batch_by_itself"),),
    "damaged-store": ((STATE, "test_a_damaged_store_is_rebuilt"),),
    # found by the ring
    "held-for-nothing": ((SCHEDULES, "test_held_for_nothing"),),
    "seed-after-the-last-look": ((NAMED, "test_seed_after_the_last_look"),),
    "parked-crawls-count": ((SCHEDULES, "test_parked_crawls_count"),),
    "hold-after-jump": (
        (RELEASE, "test_what_a_host_asks_for_as_the_clock_is_set_back_counts_from_the_new_time"),
        (NAMED, "test_clock_skew"),
    ),
    "sitemaps-of-siblings": (
        ("tests/unit/frontier/test_sitemaps.py",
         "test_of_origins_that_share_a_host_each_crawl_is_told_only_of_its_own"),
    ),
    "read-ahead-starves": (
        ("tests/unit/frontier/test_hosts.py", "test_what_was_read_ahead_does_not_starve"),
    ),
}  # fmt: skip
"""Name → (file, test)."""
