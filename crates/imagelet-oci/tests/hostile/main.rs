//! Hostile archives, B001 to B041 of the catalogue of bad inputs, each really pulled: whatever an image's layers say,
//! the host stays as it was, a refusal is one clear error that leaves nothing, and a success is exact.
//!
//! One file a category, and `differential`, which holds archives by chance against GNU tar and Python. A case gives
//! layers as raw tar bytes and the outcome they must have; `fixture` pulls it from a registry in this process and looks
//! at everything. Owners and devices are looked at as root, and a mount fails without it.

mod archive;
mod case;
mod differential;
mod fixture;
mod limits;
mod links;
mod metadata;
mod parsing;
mod paths;
mod seen;
mod specials;
mod whiteouts;

use case::{Case, Cases};
use fixture::{Host, Site};

const CATEGORIES: [Cases; 7] =
    [paths::cases, links::cases, metadata::cases, specials::cases, whiteouts::cases, parsing::cases, limits::cases];

/// Pulls every case and tells of all that went wrong.
async fn run(cases: Cases) {
    let site = Site::new().await;
    let mut wrong = Vec::new();
    for case in cases(&site.host) {
        if let Err(why) = site.check(&case).await {
            wrong.push(format!("{} {}: {why}", case.id, case.what));
        }
    }
    assert!(wrong.is_empty(), "{} cases went wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_name_leaves_the_layer() {
    run(paths::cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_hard_link_reaches_the_host() {
    run(links::cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_is_set_on_the_layers_own_files_only() {
    run(metadata::cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_and_pipes_are_never_opened_and_never_whiteouts() {
    run(specials::cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whiteouts_hide_lower_layers_and_nothing_else() {
    run(whiteouts::cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_are_read_one_way_or_refused() {
    run(parsing::cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_that_want_too_much_are_refused() {
    run(limits::cases).await;
}

#[test]
fn every_id_of_the_catalogue_has_several_cases() {
    let host = Host::nowhere();
    let cases: Vec<Case> = CATEGORIES.iter().flat_map(|cases| cases(&host)).collect();
    for number in 1..=41 {
        let id = format!("B{number:03}");
        let count = cases.iter().filter(|case| case.id == id).count();
        assert!(count >= 2, "{id} has {count} cases");
    }
    let mut names: Vec<_> = cases.iter().map(|case| (case.id, case.what.as_str())).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "two cases have one name");
}
