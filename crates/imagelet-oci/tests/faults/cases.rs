//! Where each case of a registry that misbehaves, and of the credentials for it, is proved: B069 to B101 of the catalogue.

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
fn every_case_of_a_registry_that_misbehaves_has_a_test() {
    for (case, source, test) in TESTS {
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
