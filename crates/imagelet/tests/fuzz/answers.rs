//! Credentials from outside: docker configurations, answers of plug-ins, helpers and token services. What is read is in the
//! JSON, and no error shows a password.

use std::path::Path;

use imagelet_core::credentials::{PullSecretKind, config_logins, helper_answer, plugin_answer, provider_names};
use imagelet_oci::fuzzing::token;
use serde_json::Value;

use super::{
    assert_bounded_text, assert_short_text,
    mutation::{self, Dice},
};

/// The password of all seeds.
const PASSWORD: &str = "hunter2";
/// What an error shows of a helper's output (docs/credentials.md), and what the error itself says at most.
const OUTPUT_SHOWN_MAX: usize = 4096;
const SENTENCE_MAX: usize = 512;
const VERSION: &str = "credentialprovider.kubelet.k8s.io/v1";
const LOGINS: [&[u8]; 14] = [
    b"\"auths\":{",
    b"\"a.example\":{",
    b"\"https://index.docker.io/v1/\":{",
    b"\"*.example:443\":{",
    b"\"auth\":\"dXNlcjpodW50ZXIy\"",
    b"\"auth\":\"dXNlcjpodW50ZXIy=\"",
    b"\"username\":\"user\",",
    b"\"password\":\"hunter2\"",
    b"\"Password\":null,",
    b"\"credsStore\":\"x\",",
    b"\"credHelpers\":{\"a.example\":\"x\"},",
    b"[[[[[[[[",
    b"\\ud800",
    b"null",
];
const PLUGINS: [&[u8]; 14] = [
    b"\"kind\":\"CredentialProviderResponse\",",
    b"\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",",
    b"\"cacheKeyType\":\"Registry\",",
    b"\"cacheDuration\":\"6h0m1.5s\",",
    b"\"cacheDuration\":\"9223372036854775807ns\",",
    b"\"auth\":{\"a.example\":{\"username\":\"u\",\"password\":\"hunter2\"}}",
    b"\"Username\":\"<token>\",",
    b"\"Secret\":\"hunter2\"",
    b"kind: CredentialProviderConfig\n",
    b"apiVersion: kubelet.config.k8s.io/v1\n",
    b"providers:\n- name: a\n",
    b"  env: [{name: A, value: hunter2}]\n",
    b"  defaultCacheDuration: 1h\n",
    b"&a [*a, *a]",
];
const TOKENS: [&[u8]; 6] = [
    b"\"token\":\"hunter2\",",
    b"\"access_token\":\"hunter2\",",
    b"\"expires_in\":300,",
    b"\"token\":null,",
    b"\"\\u0000\\ud800\"",
    b"[[[[[[[[",
];

/// Reads the bytes as both kinds of docker configuration.
pub(crate) fn check_logins(bytes: &[u8], _: &Path) {
    for kind in [PullSecretKind::DockerConfigJson, PullSecretKind::DockerCfg] {
        let found = config_logins(bytes, kind);
        assert_eq!(found, config_logins(bytes, kind), "read twice");
        match found {
            Ok(logins) => {
                // Texts that are no UTF-8 are read with replacements.
                let document: Value = serde_json::from_str(&String::from_utf8_lossy(bytes)).expect("it is JSON");
                for (registry, ..) in logins {
                    assert!(has_key(&document, &registry), "`{registry}` is no key of the document");
                }
            }
            Err(why) => {
                assert_short_text(&why);
                assert!(!why.contains(PASSWORD), "{why}");
            }
        }
    }
}

/// Whether an object at the top, or in one of its members, has this key.
fn has_key(document: &Value, key: &str) -> bool {
    let members = document.as_object().into_iter().flat_map(serde_json::Map::values);
    std::iter::once(document).chain(members).any(|object| object.get(key).is_some())
}

/// Reads the bytes as the answer of a plug-in, of a helper, and as the configuration of plug-ins.
pub(crate) fn check_plugins(bytes: &[u8], _: &Path) {
    match plugin_answer(bytes, VERSION) {
        Ok(logins) => {
            let document: Value = serde_json::from_str(&String::from_utf8_lossy(bytes)).expect("it is JSON");
            assert_eq!(
                (&document["kind"], &document["apiVersion"]),
                (&"CredentialProviderResponse".into(), &VERSION.into())
            );
            assert_eq!(logins.len(), document["auth"].as_object().map_or(0, serde_json::Map::len));
            for (registry, user, password) in logins {
                let login = &document["auth"][&registry];
                assert_eq!(login["username"].as_str().unwrap_or_default(), user);
                assert_eq!(login["password"].as_str().unwrap_or_default(), password);
            }
        }
        // It shows the version that the answer has.
        Err(why) => assert!(!why.chars().any(|character| character.is_control() && character != '\n'), "{why:?}"),
    }
    let (stdout, stderr) = bytes.split_at(bytes.len() / 2);
    for (stdout, stderr, succeeds) in [(bytes, &b""[..], true), (stdout, stderr, false)] {
        match helper_answer(stdout, stderr, succeeds) {
            Ok(Some(credential)) => assert!(!format!("{credential:?}").contains(PASSWORD)),
            Ok(None) => {}
            Err(why) => assert_bounded_text(&why, OUTPUT_SHOWN_MAX + SENTENCE_MAX),
        }
    }
    let names = provider_names(bytes);
    assert_eq!(names, provider_names(bytes), "read twice");
    if let Err(why) = names {
        assert!(!why.contains(|character: char| character.is_control() && character != '\n'), "{why:?}");
    }
}

/// Reads the bytes as the answer of a token service.
pub(crate) fn check_tokens(bytes: &[u8], _: &Path) {
    let Some(found) = token(bytes) else { return };
    // Texts of members that are not read may be no UTF-8.
    let document: Value = serde_json::from_str(&String::from_utf8_lossy(bytes)).expect("it is JSON");
    assert!(!found.is_empty());
    let text = |name: &str| document[name].as_str() == Some(&found);
    assert!(text("token") || text("access_token"), "a token that is no text of the answer");
}

pub(crate) fn mutate_logins(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &LOGINS);
}

pub(crate) fn mutate_plugins(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &PLUGINS);
}

pub(crate) fn mutate_tokens(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &TOKENS);
}
