//! The keep rules of a configuration: how they show, and which are refused.

use imagelet_core::text::GoDuration;

use crate::config::{check_gc::keep_rule, keys_and_defaults::KeepKeys};

fn text() -> KeepKeys {
    KeepKeys::default()
}

#[test]
fn a_rule_shows_as_it_is_configured() {
    let week = Some(GoDuration::seconds(168 * 3600));
    for (written, shown) in [
        (
            KeepKeys { repository: Some("ghcr.io/team/*".to_owned()), last_tags: Some(3), ..text() },
            "repository: ghcr.io/team/*, lastTags: 3",
        ),
        (KeepKeys { label: Some("keep".to_owned()), ..text() }, "label: keep"),
        (KeepKeys { label: Some("tier=prod*=x".to_owned()), ..text() }, "label: tier=prod*=x"),
        (KeepKeys { namespace: Some("kube-*".to_owned()), r#for: week, ..text() }, "namespace: kube-*, for: 168h0m0s"),
        (KeepKeys { image: Some("busybox".to_owned()), ..text() }, "image: busybox"),
    ] {
        assert_eq!(keep_rule(&written).unwrap().to_string(), shown);
    }
}

#[test]
fn what_keeps_nothing_or_two_things_is_no_rule() {
    let (repository, image) = (Some("a/*".to_owned()), Some("busybox".to_owned()));
    let not_one = "a rule has exactly one of `repository`, `label`, `namespace` and `image`";
    let alone = "`repository` and `lastTags` go together";
    for (written, error) in [
        (text(), not_one),
        (KeepKeys { image: image.clone(), namespace: Some("a".to_owned()), ..text() }, not_one),
        (KeepKeys { image, last_tags: Some(1), ..text() }, not_one),
        (KeepKeys { last_tags: Some(1), ..text() }, alone),
        (KeepKeys { repository: repository.clone(), ..text() }, alone),
        (
            KeepKeys { repository: repository.clone(), last_tags: Some(0), ..text() },
            "lastTags 0 must be between 1 and 10000, inclusive",
        ),
        (
            KeepKeys { repository, last_tags: Some(1 << 40), ..text() },
            "lastTags 1099511627776 must be between 1 and 10000, inclusive",
        ),
        (KeepKeys { label: Some("=x".to_owned()), ..text() }, "label `=x` has no name, or one with blanks"),
        (
            KeepKeys { namespace: Some("a".to_owned()), r#for: Some(GoDuration(0)), ..text() },
            "a rule that keeps for no time keeps nothing",
        ),
    ] {
        assert_eq!(keep_rule(&written).unwrap_err().to_string(), error);
    }
    for written in [
        KeepKeys { namespace: Some(String::new()), ..text() },
        KeepKeys { label: Some("a=".to_owned()), ..text() },
        KeepKeys { image: Some("*".to_owned()), ..text() },
        KeepKeys { image: Some("UPPER".to_owned()), ..text() },
    ] {
        assert!(keep_rule(&written).is_err());
    }
}
