//! Fails on messages that name what an installed program does not have, or print sizes and numbers in a form of their own.

use std::fs;

use super::words::product_files;
use crate::source::{repository, without_tests};

/// Bytes as a plain number where the exact one, or a length of a few characters, is what the message is about: by file and
/// placeholder.
const EXACT: [(&str, &str); 31] = [
    // As the kubelet prints them.
    ("imagelet-core/src/gc/report.rs", "freed"),
    ("imagelet-core/src/gc/run.rs", "amount"),
    ("imagelet-core/src/gc/run.rs", "freed"),
    ("imagelet-core/src/manager/ensure/completion.rs", "size"),
    ("imagelet-core/src/manager/ensure/mod.rs", ""),
    // For developers.
    ("imagelet-core/src/ports/details.rs", ""),
    ("imagelet-oci/src/layer_sink.rs", ""),
    ("imagelet-core/src/ports/pull_request.rs", ""),
    // Two numbers that differ by little.
    ("imagelet-oci/src/image_archive/mod.rs", "size"),
    ("imagelet-oci/src/store/verify/compare.rs", "is"),
    ("imagelet-oci/src/registry/blob/mod.rs", "size"),
    ("imagelet-oci/src/registry/blob/mod.rs", "reached"),
    ("imagelet-oci/src/registry/blob/mod.rs", "length"),
    ("imagelet-oci/src/unpack/archive/pax.rs", "length"),
    // Lengths of names.
    ("imagelet-core/src/credentials/provider/cache.rs", "0"),
    ("imagelet-core/src/credentials/provider/redact.rs", ""),
    ("imagelet-core/src/credentials/provider/validate.rs", "PREFIX_LENGTH_MAX"),
    ("imagelet-core/src/credentials/provider/validate.rs", "NAME_LENGTH_MAX"),
    ("imagelet-runtime/src/cri/endpoint.rs", "SOCKET_PATH_BYTES_MAX"),
    ("imagelet-runtime/src/cri/server/listen.rs", "SOCKET_PATH_BYTES_MAX"),
    ("imagelet-kube/src/credentials/cluster_tokens.rs", "length"),
    ("imagelet-kube/src/credentials/secret_object.rs", "UID_LENGTH_MAX"),
    ("imagelet-kube/src/pods/mod.rs", ""),
    ("imagelet-kube/src/prefetch/objects/set_spec.rs", "length"),
    ("imagelet-kube/src/prefetch/objects/set_spec.rs", "PLATFORM_LENGTH_MAX"),
    ("imagelet-oci/src/unpack/name.rs", ""),
    ("imagelet-oci/src/unpack/name.rs", "COMPONENT_MAX"),
    ("imagelet-oci/src/unpack/writer/mod.rs", "path_max"),
    ("imagelet-oci/src/unpack/writer/xattr.rs", "length"),
    ("imagelet-node/src/config/check.rs", "length"),
    ("imagelet-node/src/config/check.rs", "PASSWORD_BYTES_MAX"),
];

/// Nouns of what messages count.
const NOUNS: [&str; 11] =
    ["images", "layers", "names", "failures", "events", "decisions", "lines", "files", "pulls", "pods", "users"];

/// Lines of code with their file and number, without tests and comments.
fn lines() -> Vec<(String, usize, String)> {
    let mut lines = Vec::new();
    let is_of_program = |path: &std::path::PathBuf| path.components().any(|part| part.as_os_str() == "src");
    for path in product_files().into_iter().filter(is_of_program) {
        let text = without_tests(&fs::read_to_string(&path).unwrap());
        let file = path.strip_prefix(repository().join("crates")).unwrap().display().to_string();
        let code = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
        lines.extend(code.map(|(at, line)| (file.clone(), at + 1, line.to_owned())));
    }
    assert!(lines.len() > 30_000, "{} lines: the sources were not read", lines.len());
    lines
}

#[test]
fn no_message_sends_a_user_to_a_file_of_this_repository() {
    let found = lines()
        .into_iter()
        .filter(|(_, _, line)| line.contains("docs/") && line.contains(".md") && !line.contains("include_str!"));
    let mut found: Vec<_> = found.map(|(file, at, line)| format!("{file}:{at}: {}", line.trim())).collect();
    // `kubectl explain` prints the descriptions of these.
    for file in ["crates/imagelet-kube/src/prefetch/objects/crds.yaml", "deploy/imagelet.yaml"] {
        let text = fs::read_to_string(repository().join(file)).unwrap();
        let lines = text.lines().filter(|line| line.contains("docs/") && !line.trim_start().starts_with('#'));
        found.extend(lines.map(|line| format!("{file}: {}", line.trim())));
    }
    assert_eq!(found, Vec::<String>::new(), "`imagelet help TOPIC` shows a page");
}

#[test]
fn messages_print_sizes_with_a_unit_and_numbers_with_the_noun_that_agrees() {
    let mut found = Vec::new();
    for (file, at, line) in lines() {
        for (end, _) in line.match_indices("} ") {
            let noun = line[end + 2..].split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
            let value = line[..end].rsplit('{').next().unwrap_or_default();
            let is_exact = EXACT.contains(&(file.as_str(), value));
            // A limit in capitals is more than one, and so is what exceeds it.
            let is_limit = value.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') && !value.is_empty();
            let is_counted = NOUNS.contains(&noun) && !is_limit && !line.contains("_MAX");
            if (noun == "bytes" && !is_exact) || is_counted {
                found.push(format!("{file}:{at}: `{{{value}}} {noun}`"));
            }
        }
    }
    assert_eq!(found, Vec::<String>::new(), "`ByteSize` and `counted` print them");
}
