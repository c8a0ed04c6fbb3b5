//! Signature policies and signed texts: an accepted policy means what its JSON says, and never accepts more.

use std::path::Path;

use imagelet_core::image::Reference;
use serde_json::Value;

use super::{
    assert_short_text,
    mutation::{self, Dice},
};
use imagelet_oci::fuzzing::{PolicyRule, policy_rule, signed_claim};

/// Requirements of a scope.
const REQUIREMENTS_MAX: usize = 32;
/// Why a text is no JSON, in the words of serde.
const HALF_CHARACTERS: [&str; 3] = ["unicode code point", "surrogate", "hex escape"];
/// Names of images, each with the scopes that are for it, the most specific first.
const IMAGES: [(&str, &[&str]); 2] = [
    (
        "a.example/team/app:v1",
        &["a.example/team/app:v1", "a.example/team/app", "a.example/team", "a.example", "*.example", ""],
    ),
    (
        "docker.io/app:v1",
        &["docker.io/library/app:v1", "docker.io/library/app", "docker.io/library", "docker.io", "*.io", ""],
    ),
];
const WORDS: [&[u8]; 24] = [
    b"\"default\":",
    b"[{\"type\":\"reject\"}]",
    b"[{\"type\":\"insecureAcceptAnything\"}]",
    b"{\"type\":\"signedBy\",\"keyType\":\"GPGKeys\",\"keyPath\":\"/k\"}",
    b"{\"type\":\"sigstoreSigned\",\"keyData\":\"QQ==\"}",
    b"\"transports\":{\"docker\":{}}",
    b"\"docker\":{",
    b"\"a.example/team\":",
    b"\"*.example\":",
    b"\"\":",
    b"\"keyPath\":\"/k\",",
    b"\"keyPaths\":[\"/k\",\"relative\"],",
    b"\"keyDatas\":[\"QQ==\"],",
    b"\"signedIdentity\":{\"type\":\"matchRepository\"},",
    b"\"signedIdentity\":{\"type\":\"remapIdentity\",\"prefix\":\"a\",\"signedPrefix\":\"b\"},",
    b"\"fulcio\":{},",
    b"\"rekorPublicKeyData\":null,",
    b"\"critical\":{",
    b"\"docker-manifest-digest\":\"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"",
    b"\"docker-reference\":\"a.example/team/app:v1\"",
    b"null",
    b"[[[[[[[[",
    b"\\u0000",
    b"\xc2\x9b",
];

/// Reads the bytes as a policy and as the text of a signature.
pub(crate) fn check(bytes: &[u8], _: &Path) {
    for (name, scopes) in IMAGES {
        let reference: Reference = name.parse().expect("a reference");
        match policy_rule(bytes, &reference) {
            Ok(rule) => assert_means_its_json(&rule, bytes, scopes),
            Err(why) => assert_short_text(&why),
        }
        match signed_claim(bytes, &reference) {
            Ok((digest, refusals)) => {
                assert_eq!(digest.as_str().parse().as_ref(), Ok(&digest));
                let identities: Vec<_> = refusals.iter().map(|(identity, _)| *identity).collect();
                // A looser identity accepts what a stricter one does.
                let accepted: [&[&str]; 3] =
                    [&[], &["exact", "digest or exact"], &["exact", "digest or exact", "repository"]];
                assert!(accepted.contains(&&identities[..]), "refused by {identities:?}");
                for (_, refusal) in &refusals {
                    assert_short_text(refusal);
                }
            }
            Err(why) => assert_short_text(&why),
        }
    }
}

fn assert_means_its_json(rule: &PolicyRule, bytes: &[u8], scopes: &[&str]) {
    let policy: Value = match serde_json::from_slice(bytes) {
        Ok(policy) => policy,
        Err(error) => {
            // Serde skips what nothing reads, such as another transport, with half characters in its texts.
            let why = error.to_string();
            let is_of_a_text = HALF_CHARACTERS.iter().any(|words| why.contains(words));
            return assert!(is_of_a_text, "an accepted policy is no JSON: {why}");
        }
    };
    let listed =
        scopes.iter().find_map(|scope| policy["transports"]["docker"].get(scope).map(|listed| (scope, listed)));
    let (place, listed) = match listed {
        Some((scope, listed)) => (format!("transports.docker[\"{scope}\"]"), listed),
        None => ("default".to_owned(), &policy["default"]),
    };
    assert_eq!(rule.place, place);
    let types: Vec<&str> = listed.as_array().expect("a list").iter().filter_map(|item| item["type"].as_str()).collect();
    assert!((1..=REQUIREMENTS_MAX).contains(&types.len()), "{} requirements", types.len());
    assert_eq!(rule.requirements.len(), types.len(), "a requirement was lost");
    for (found, written) in rule.requirements.iter().zip(types) {
        let expected: &[&str] = match written {
            "insecureAcceptAnything" => &["accept"],
            "reject" => &["reject"],
            "signedBy" => &["unsupported"],
            "sigstoreSigned" => &["sigstore", "unsupported"],
            other => panic!("the type `{other}` was accepted"),
        };
        assert!(expected.contains(found), "`{written}` is read as `{found}`");
    }
    rule.problems.iter().for_each(|problem| assert_short_text(problem));
}

/// Changes letters and inserts parts of policies.
pub(crate) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &WORDS);
}
