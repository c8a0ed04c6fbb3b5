//! Files that say which hosts serve a registry: what is accepted is bounded, reads the same twice and shows no user.

use std::path::Path;

use imagelet_core::image::Reference;

use super::mutation::{self, Dice};
use imagelet_oci::fuzzing::registry_hosts;

const HOSTS_MAX: usize = 36;
const MESSAGE_MAX: usize = 4096;
const NAMES: [&str; 3] = ["docker.io/team/app:v1", "a.corp.example:5000/x:v1", "127.0.0.1:5000/x:v1"];
const WORDS: [&[u8]; 34] = [
    b"server = \"https://a.example\"\n",
    b"[host.\"https://user:hunter2@b.example/v2\"]\n",
    b"capabilities = [\"pull\"]\n",
    b"client = [[\"a\", \"b\"], \"c\"]\n",
    b"ca = [\"/etc/passwd\"]\n",
    b"dial_timeout = \"1s\"\n",
    b"header = {a = [\"b\"]}\n",
    b"override_path = true\n",
    b"skip_verify = true\n",
    b"[[registry]]\n",
    b"prefix = \"*.corp.example\"\n",
    b"location = \"docker.io\"\n",
    b"location = \"hunter2@a.example/b\"\n",
    b"[[registry.mirror]]\n",
    b"pull-from-mirror = \"tag-only\"\n",
    b"insecure = true\n",
    b"blocked = true\n",
    b"# drop-in\n",
    b"[[[[[[[[",
    b"\\u0000",
    b"a.a.a.a.a.a.a.a = 1\n",
    b"mirrors:\n  docker.io:\n",
    b"  \"*\":\n",
    b"    endpoint: [\"https://m.example/v2/hub\", a.corp.example:5000]\n",
    b"    rewrite:\n",
    b"      \"^(.*)/(.*)\": \"a/$1-${2}\"\n",
    b"      \"\": \"/\"\n",
    b"configs:\n",
    b"  a.corp.example:5000:\n",
    b"    auth: {username: u, password: hunter2}\n",
    b"    auth: {auth: dTpodW50ZXIy}\n",
    b"    tls: {ca_file: /etc/passwd, insecure_skip_verify: true}\n",
    b"&a [*a, *a]",
    b"(a{9}){9}",
];

/// Reads a file in each format for some images.
pub(crate) fn check(bytes: &[u8], _: &Path) {
    let text = String::from_utf8_lossy(bytes);
    for (name, extension) in NAMES.into_iter().flat_map(|name| ["toml", "conf", "yaml"].map(|format| (name, format))) {
        let reference: Reference = name.parse().expect("a reference");
        let found = registry_hosts(&text, extension, &reference);
        assert_eq!(found, registry_hosts(&text, extension, &reference), "read twice");
        match found {
            Ok(hosts) => {
                let hosts = hosts.unwrap_or_default();
                assert!(hosts.len() <= HOSTS_MAX);
                for host in hosts {
                    let authority = host.split('/').nth(2).expect("an origin");
                    assert!(host.starts_with("http") && !authority.is_empty() && !authority.contains('@'), "{host}");
                }
            }
            Err(problem) => {
                assert!(problem.len() <= MESSAGE_MAX, "a message of {} bytes", problem.len());
                assert!(
                    !problem.contains(|character: char| character.is_control() && character != '\n'),
                    "{problem:?}"
                );
            }
        }
    }
}

/// Changes letters and inserts parts of such files.
pub(crate) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &WORDS);
}
