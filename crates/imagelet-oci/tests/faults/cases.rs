//! Where each case of a registry that misbehaves, and of the credentials for it, is proved: B069 to B101 of the catalogue;
//! and where each promise of the registry path is.

use imagelet_oci::testing::FAULTS;

const REGISTRY: &str = include_str!("../../src/registry/tests/mod.rs");
const TOKENS: &str = include_str!("../../src/registry/tests/tokens.rs");
const CREDENTIALS: &str = include_str!("../../src/registry/tests/credential_table.rs");
const PROXIES: &str = include_str!("../../src/registry/tests/proxies.rs");
const DIAL: &str = include_str!("../../src/registry/connection/dial.rs");
const STRANGERS: &str = include_str!("../../src/registry/tests/strangers.rs");
const CERTIFICATES: &str = include_str!("../../src/registry/tests/certificates.rs");
const REGISTRY_ERROR: &str = include_str!("../../src/registry/error.rs");
const FOREIGN: &str = include_str!("../hostile_image/foreign.rs");
const DOCKER_CONFIG: &str = include_str!("../../../imagelet-core/src/credentials/docker_config.rs");
const GLOB: &str = include_str!("../../../imagelet-core/src/credentials/registry_match.rs");
const PLUGIN: &str = include_str!("../../../imagelet-core/src/credentials/provider/exec/tests.rs");
const PLUGINS: &str = include_str!("../../../imagelet/tests/it/plugins.rs");
const REFERENCE: &str = include_str!("../../../imagelet-core/src/image/reference.rs");
const RECORDS: &str = include_str!("../../../imagelet-core/src/records/tests/mod.rs");
const RECORD_VECTORS: &str = include_str!("../../../imagelet-core/src/records/tests/vectors.rs");
const PLAN: &str = include_str!("../../../imagelet-core/src/gc/tests/plan.rs");
const INVENTORY: &str = include_str!("../../../imagelet-core/src/inventory/tests/mod.rs");

const ADDRESSES: &str = include_str!("../../src/registry/tests/addresses.rs");
const HOSTS_TOML: &str = include_str!("../../src/registry/tests/hosts_toml.rs");
const FAILOVER: &str = include_str!("../../src/registry/tests/failover.rs");
const SILENCE: &str = include_str!("../../src/registry/tests/silence.rs");
const PARALLEL: &str = include_str!("../../src/registry/blob/parallel/tests.rs");
const PROXY_CHOICE: &str = include_str!("../../src/registry/connection/proxy/mod.rs");
const CERTS_D: &str = include_str!("../../src/registry/hosts/certs_d.rs");
const REGISTRIES_CONF: &str = include_str!("../../src/registry/hosts/registries_conf.rs");
const REGISTRIES_YAML: &str = include_str!("../../src/registry/hosts/registries_yaml.rs");
const RATE_LIMIT: &str = include_str!("../../src/registry/rate_limit.rs");
const ATTEMPTS: &str = include_str!("../../src/registry/next_host.rs");
const MANIFEST: &str = include_str!("../../src/manifest/tests.rs");
const SIGNATURE: &str = include_str!("../../src/signature/tests.rs");
const MEDIA: &str = include_str!("../hostile_image/media.rs");
const DIGESTS: &str = include_str!("../hostile_image/digests.rs");
const COMPRESSION: &str = include_str!("../hostile_image/compression.rs");
const MANIFESTS: &str = include_str!("../hostile_image/manifests.rs");
const ACCESS: &str = include_str!("../engine/access.rs");
const ARCHIVE: &str = include_str!("../engine/archive.rs");
const ARTIFACT: &str = include_str!("../engine/artifact.rs");
const TRUST: &str = include_str!("../engine/trust.rs");
const RELOAD: &str = include_str!("../../../imagelet/tests/it/configuration/reload.rs");
const RESUME: &str = include_str!("../../../imagelet/tests/it/resume.rs");
const SENDERS: &str = include_str!("../../../imagelet/tests/it/senders.rs");
const ARCHIVES: &str = include_str!("../../../imagelet/tests/it/archives.rs");
const PROXY: &str = include_str!("../../../imagelet/tests/it/proxy.rs");
const REGISTRY_ACCESS: &str = include_str!("../../../imagelet/tests/it/registry_access.rs");

/// What the registry path promises: the promise, the file, the test.
const PROMISES: &[(&str, &str, &str)] = &[
    ("NO_PROXY", PROXY_CHOICE, "no_proxy_is_read_as_go_reads_it"),
    ("HTTP, HTTPS and SOCKS5 proxies", PROXIES, "a_pull_goes_by_the_proxy_with_the_credential_of_each"),
    ("a host's own proxy", PROXIES, "an_encrypted_proxy_is_verified_by_the_authorities_of_its_hosts"),
    ("a proxy's environment", PROXY, "a_pull_uses_the_proxy_of_the_environment_and_names_it_without_its_password"),
    ("IPv6", ADDRESSES, "a_registry_at_an_ipv6_address_serves_a_pull_with_a_token_and_a_redirect"),
    ("IPv6 in TLS", ADDRESSES, "a_registry_at_an_ipv6_address_is_verified_by_that_address"),
    ("dual stack", DIAL, "both_families_take_turns_in_the_order_of_the_resolver"),
    ("happy eyeballs", DIAL, "the_first_connection_wins_and_a_dead_address_costs_its_head_start"),
    ("an authority, skip_verify", REGISTRY, "an_encrypted_registry_is_believed_only_with_its_authority"),
    ("a client certificate", REGISTRY_ACCESS, "a_client_certificate_is_shown_where_hosts_toml_names_it"),
    ("a failed handshake is explained", CERTIFICATES, "a_failed_handshake_says_what_the_server_speaks_or_wants"),
    ("the order of hosts.toml", CERTS_D, "hosts_are_asked_in_the_order_of_the_file"),
    (
        "paths, capabilities, headers",
        HOSTS_TOML,
        "a_mirror_is_requested_below_its_path_for_what_it_can_and_with_its_header",
    ),
    (
        "`_default`",
        HOSTS_TOML,
        "the_default_folder_leads_to_a_shared_cache_that_gets_the_registrys_name_and_no_credential",
    ),
    ("dial_timeout", ADDRESSES, "the_dial_timeout_of_a_host_bounds_its_connection_and_no_others"),
    ("registries.conf", REGISTRIES_CONF, "the_longest_prefix_gives_mirrors_and_location"),
    ("registries.yaml", REGISTRIES_YAML, "endpoints_come_before_the_registry_with_the_settings_of_their_own_hosts"),
    (
        "health is shared and on disk",
        FAILOVER,
        "a_mirror_that_never_answers_costs_one_deadline_for_an_image_of_thirty_layers_and_none_after_a_restart",
    ),
    ("a probe", FAILOVER, "a_mirror_that_recovers_is_used_again_after_a_probe"),
    ("another source in mid-blob", FAILOVER, "a_blob_that_breaks_off_at_a_mirror_goes_on_at_the_registry"),
    ("another source after silence", SILENCE, "a_mirror_that_falls_silent_in_the_middle_is_passed_over"),
    (
        "`why` names the senders",
        SENDERS,
        "why_names_the_mirror_that_broke_off_and_the_registry_that_went_on_with_their_bytes",
    ),
    ("partial blobs", RESUME, "a_pull_that_is_killed_many_times_fetches_little_again"),
    ("a changed tail", RESUME, "bytes_that_changed_on_the_disk_are_found_and_fetched_again"),
    (
        "stragglers",
        PARALLEL,
        "a_connection_that_trickles_or_falls_silent_is_overtaken_by_a_second_request_for_its_rest",
    ),
    (
        "stragglers, two hosts",
        PARALLEL,
        "a_mirror_that_slows_to_a_crawl_is_overtaken_by_the_registry_and_its_connection_dropped",
    ),
    ("Retry-After, RateLimit-*", RATE_LIMIT, "a_wait_is_read_in_seconds_as_a_date_and_from_rate_limit_headers"),
    (
        "a limit by registry and account",
        REGISTRY,
        "a_rate_limit_is_waited_out_for_as_long_as_the_registry_asks_by_all_of_an_account",
    ),
    (
        "HEAD before GET",
        ACCESS,
        "a_tag_that_is_here_costs_a_head_and_a_get_only_where_that_does_not_answer_or_the_tag_has_moved",
    ),
    ("one budget of retries", ATTEMPTS, "requests_that_retry_at_the_same_time_spend_the_budget_once"),
    ("jitter", ATTEMPTS, "waits_double_up_to_a_bound_and_begin_anew_after_progress"),
    ("a cap of the bandwidth", RELOAD, "a_bandwidth_holds_for_running_pulls_and_a_reload_changes_it"),
    ("connections of a host", PARALLEL, "a_host_never_has_more_connections_than_its_bound_and_every_pull_goes_on"),
    ("identity tokens", TOKENS, "identity_and_registry_tokens_open_what_they_are_for"),
    (
        "one token for requests at once",
        TOKENS,
        "a_token_service_that_knows_only_forms_gets_one_and_one_token_serves_concurrent_requests",
    ),
    ("a nested index", REGISTRY, "indexes_that_never_end_are_left"),
    ("variants", MANIFEST, "the_best_entry_for_a_platform_is_chosen"),
    ("Docker's own types", MANIFESTS, "a_document_is_one_thing_by_its_own_and_its_transports_word"),
    ("sha512", DIGESTS, "longer_digests_are_held_to_like_the_usual_one"),
    ("a layer of no bytes", DIGESTS, "whatever_is_not_as_long_as_it_is_said_is_refused"),
    (
        "a layer of no bytes in an archive",
        ARCHIVE,
        "a_layer_of_no_bytes_is_pulled_exported_and_imported_like_any_other",
    ),
    ("referrers and schema 1", MEDIA, "what_is_not_an_image_is_refused_by_its_type_before_a_byte_of_it_is_fetched"),
    ("artifacts", ARTIFACT, "an_artifact_is_pulled_as_files_and_identified_by_its_manifest"),
    ("zstd, zstd:chunked", COMPRESSION, "a_layer_is_unpacked_by_what_it_is_or_refused_as_damaged"),
    ("foreign and encrypted layers", MANIFEST, "each_layer_type_is_unpacked_or_refused_by_name"),
    ("export and import", ARCHIVE, "an_export_comes_back_with_every_digest_and_name_from_a_file_and_from_a_folder"),
    ("several images of docker save", ARCHIVE, "several_images_of_docker_save_are_imported_also_compressed"),
    ("skopeo, both ways", ARCHIVES, "skopeo_reads_what_is_exported_and_what_it_writes_is_imported_with_every_digest"),
    ("an import folder", ARCHIVES, "a_daemon_imports_what_appears_in_its_folder_pins_it_and_moves_it_away_once"),
    ("policy.json", SIGNATURE, "the_most_specific_scope_counts"),
    (
        "a signature before the first layer",
        TRUST,
        "an_image_is_pulled_once_its_signature_meets_the_policy_and_no_layer_is_fetched_before",
    ),
];

/// Cases with tests of their own: the case, the file, the test.
const TESTS: &[(&str, &str, &str)] = &[
    ("B069", FOREIGN, "a_link_in_a_manifest_is_never_followed"),
    ("B070", REGISTRY, "a_redirect_to_another_origin_leaves_the_credential_behind"),
    ("B070", CREDENTIALS, "over_tls_each_origin_sees_its_own_credential_header_certificate_and_token_and_no_other"),
    ("B071", STRANGERS, "a_token_service_that_a_redirect_target_names_is_never_shown_the_password"),
    ("B072", STRANGERS, "a_password_and_an_identity_token_stay_away_from_a_plain_token_service_elsewhere"),
    ("B072", CREDENTIALS, "over_plain_http_each_origin_sees_its_own_credential_header_and_token_and_no_other"),
    ("B073", REGISTRY, "a_wrong_password_is_tried_once_and_not_repeated_in_the_error"),
    ("B074", REGISTRY, "a_token_is_got_for_this_repository_and_used_for_all_of_the_pull"),
    ("B077", TOKENS, "identity_and_registry_tokens_open_what_they_are_for"),
    ("B077", DOCKER_CONFIG, "every_document_and_auth_vector_holds"),
    ("B087", CERTIFICATES, "a_named_server_certificate_is_refused_out_of_its_time_and_for_other_names"),
    ("B088", DIAL, "the_first_connection_wins_and_a_dead_address_costs_its_head_start"),
    ("B089", PROXIES, "a_proxy_that_is_down_or_refuses_is_named_without_its_password"),
    ("B090", REGISTRY_ERROR, "half_a_secret_at_the_cut_is_left_out_and_long_answers_end"),
    ("B091", REGISTRY_ERROR, "a_signed_address_is_repeated_without_its_signature"),
    ("B092", DOCKER_CONFIG, "an_error_shows_nothing_of_the_document"),
    ("B093", REFERENCE, "every_reference_vector_holds"),
    ("B094", PLUGIN, "a_plugin_that_crashes_or_cannot_start_is_reported_as_go_does"),
    ("B094", PLUGIN, "an_endless_answer_is_cut_off_and_an_endless_complaint_is_read_and_dropped"),
    ("B094", PLUGINS, "plugins_that_lie_are_each_told_apart_and_keep_nobody_from_the_one_that_does_not"),
    ("B095", PLUGIN, "a_child_that_left_the_group_and_holds_the_output_is_not_waited_for"),
    ("B096", GLOB, "every_glob_vector_holds"),
    ("B097", RECORDS, "an_older_version_is_rewritten_and_an_unreadable_file_is_kept"),
    ("B098", RECORDS, "a_pull_that_was_cut_off_guards_what_it_may_still_bring_until_that_was_looked_for"),
    ("B099", RECORDS, "a_pull_that_is_given_up_does_not_open_what_a_crashed_pull_of_the_same_name_brought"),
    ("B100", RECORD_VECTORS, "every_vector_of_who_must_pull_holds_in_both_ways"),
    ("B101", PLAN, "a_disk_of_unknown_size_makes_no_image_go"),
    ("B101", INVENTORY, "a_clock_set_back_leaves_nothing_in_the_future"),
];

/// Cases that faults of the matrix stand for: the case, the first words of the faults' names.
const IN_THE_MATRIX: &[(&str, &[&str])] = &[
    ("B070", &["redirect-to-storage"]),
    ("B071", &["target-401"]),
    ("B072", &["realm-of-another-host", "realm-of-another-port", "realm-of-a-file"]),
    ("B073", &["challenge-loop", "token-401", "token-expired-in-the-pull"]),
    ("B075", &["token-64-mib", "token-html", "token-stall", "token-silence"]),
    ("B076", &["challenge-malformed", "challenge-60-kb"]),
    ("B078", &["redirect-loop", "redirect-11-hops", "redirect-relative", "redirect-to-a-file", "redirect-with-a-user"]),
    ("B079", &["layer-cut-once", "layer-cut", "layer-reset-once", "layer-reset"]),
    ("B080", &["layer-stall", "head-slowloris"]),
    ("B081", &["layer-length-too-short", "layer-length-too-long", "layer-chunked", "layer-204", "layer-206-unasked"]),
    ("B082", &["layer-range-ignored", "layer-wrong-range"]),
    (
        "B083",
        &["rate-limit-seconds", "rate-limit-date", "rate-limit-a-day", "rate-limit-garbage", "unavailable-seconds"],
    ),
    ("B084", &["manifest-500", "layer-404", "manifest-404", "manifest-403"]),
    ("B085", &["head-garbage", "head-20-mib", "informational-flood"]),
    ("B087", &["tls-expired", "tls-wrong-name", "tls-self-signed", "tls-too-old", "tls-client-certificate-wanted"]),
];

/// Cases without a test, and why.
const WITHOUT: &[(&str, &str)] = &[("B086", "the registry client speaks HTTP/1.1 only")];

#[test]
fn every_case_of_a_registry_that_misbehaves_and_every_promise_has_a_test() {
    for (case, source, test) in TESTS.iter().chain(PROMISES) {
        assert!(source.contains(&format!("fn {test}()")), "{case}: there is no test `{test}` any more");
    }
    for (case, names) in IN_THE_MATRIX {
        for name in *names {
            assert!(FAULTS.iter().any(|fault| fault.name == *name), "{case}: there is no fault `{name}`");
        }
    }
    let proved = |case: &str| {
        TESTS.iter().any(|(it, ..)| *it == case)
            || IN_THE_MATRIX.iter().any(|(it, names)| *it == case && !names.is_empty())
    };
    let wanted = (69..=101).map(|number| format!("B{number:03}"));
    let open: Vec<String> = wanted.filter(|case| !proved(case)).collect();
    let known: Vec<&str> = WITHOUT.iter().map(|(case, _)| *case).collect();
    assert_eq!(open, known, "cases without a test");
}
