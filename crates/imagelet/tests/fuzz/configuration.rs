//! Files of imagelet's configuration and of a kubelet's: what is accepted means the same when it is written back, at lines that
//! exist, and no complaint shows a password or is endless.

use std::{fs, path::Path};

use imagelet_node::config::{ConfigError, Environment, Source, Sources};
use serde_json::{Value, json};

use super::mutation::{self, Dice};

/// The password of all seeds.
const PASSWORD: &str = "hunter2";
/// A file may have a complaint about each line.
const COMPLAINT_MAX: usize = 4 << 10;
const WORDS: [&[u8]; 40] = [
    b"apiVersion: imagelet.dev/v1alpha1\n",
    b"kind: ImageletConfiguration\n",
    b"kind: KubeletConfiguration\n",
    b"imageGCHighThresholdPercent: 85\n",
    b"imageGCLowThresholdPercent: -1\n",
    b"imageMinimumGCAge: 2m\n",
    b"imageMaximumGCAge: 9223372036854775807ns\n",
    b"maxParallelImagePulls: 4\n",
    b"serializeImagePulls: false\n",
    b"registryPullQPS: 2147483648\n",
    b"evictionHard: {imagefs.available: 15%, nodefs.inodesFree: 1Gi}\n",
    b"evictionSoftGracePeriod: {imagefs.available: 1m30s}\n",
    b"featureGates: {ImageMaximumGCAge: true}\n",
    b"tracing: {endpoint: 'a:1', samplingRatePerMillion: 1}\n",
    b"containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n",
    b"preloadedImagesVerificationAllowlist: ['a.example/*']\n",
    b"compatibility: kubelet\n",
    b"store:\n",
    b"  path: /var/lib/imagelet\n",
    b"  durability: background\n",
    b"registry:\n",
    b"  proxies: [{hosts: [a.example], proxy: 'http://user:hunter2@p.example:1'}]\n",
    b"  proxies: {https: 'http://user:hunter2@p.example:1'}\n",
    b"  configPath: /etc/containerd/certs.d\n",
    b"imageService:\n",
    b"  cri: {endpoint: 'unix:///run/containerd/containerd.sock'}\n",
    b"  pinnedImages: {sandbox: 'registry.k8s.io/pause:3.10'}\n",
    b"gc:\n",
    b"  keep: [{images: ['a.example/*'], last: 2}]\n",
    b"socket: /run/imagelet/imagelet.sock\n",
    b"http: {address: '127.0.0.1:9'}\n",
    b"limits: {layerBytes: 1Gi}\n",
    b"&a [*a, *a]",
    b"&a {b: &b [1, 2], c: *b}\n",
    b"<<: *a\n",
    b"---\n",
    b"1e999",
    b".nan",
    b"[[[[[[[[",
    b"\"\\u0000\\n\"",
];

#[derive(Debug, PartialEq)]
struct ReadConfiguration {
    /// The keys that the file sets, with value and line.
    given: Vec<(String, Value, usize)>,
    /// Why keys or values were rejected.
    refusal: Option<String>,
    /// The checked settings as a text, or every violated rule.
    settings: Result<String, String>,
}

/// Reads a file of imagelet or of a kubelet, as a daemon run by root does.
fn read_configuration(path: &Path, is_kubelets: bool) -> ReadConfiguration {
    let mut sources = Sources::new(Environment { root: true, ..Environment::default() });
    let read = if is_kubelets { sources.add_kubelet_file(path) } else { sources.add_file(path) };
    let text = |error: ConfigError| error.to_string();
    let given = sources.effective().expect("keys that were accepted make a file").into_iter();
    ReadConfiguration {
        given: given
            .filter_map(|key| match key.source {
                Source::File(_, line) => Some((key.key, key.value, line)),
                _ => None,
            })
            .collect(),
        refusal: read.err().map(text),
        settings: sources.settings().map(|settings| format!("{settings:?}")).map_err(text),
    }
}

/// Reads a file of each kind.
pub(crate) fn check(bytes: &[u8], folder: &Path) {
    let path = folder.join("configuration.yaml");
    for is_kubelets in [false, true] {
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("the folder is the check's own");
            let read = read_configuration(&path, is_kubelets);
            let settings = read.settings.map(|settings| without_moments(&settings));
            ReadConfiguration { settings, ..read }
        };
        let found = read(bytes);
        assert_eq!(found, read(bytes), "read twice");
        let lines = 1 + bytes.iter().filter(|byte| **byte == b'\n' || **byte == b'\r').count();
        for (key, _, line) in &found.given {
            assert!((1..=lines).contains(line), "{key} is at line {line} of {lines}");
        }
        for complaint in found.refusal.iter().chain(found.settings.as_ref().err()) {
            for line in complaint.lines() {
                assert!(line.len() <= COMPLAINT_MAX + 2 * bytes.len(), "a complaint of {} bytes", line.len());
            }
            assert!(!complaint.contains(|letter: char| letter.is_control() && letter != '\n'), "{complaint:?}");
        }
        assert!(!found.settings.as_ref().is_ok_and(|settings| settings.contains(PASSWORD) && is_secret(&found.given)));
        if found.refusal.is_none() {
            let again = read(written(&found.given, is_kubelets).to_string().as_bytes());
            let values = |given: &[(String, Value, usize)]| -> Vec<(String, Value)> {
                given.iter().map(|(key, value, _)| (key.clone(), value.clone())).collect()
            };
            assert_eq!(again.refusal, None, "written back from {:?}", found.given);
            assert_eq!(values(&again.given), values(&found.given), "read as it was written");
            if let Ok(settings) = &found.settings {
                assert_eq!(again.settings.as_ref(), Ok(settings), "read as it was written");
            }
        }
    }
    fs::remove_file(&path).expect("the folder is the check's own");
}

/// Settings as a text, without the moment at which a limiter of them was made.
fn without_moments(settings: &str) -> String {
    let mut parts = settings.split("Instant {");
    let first = parts.next().unwrap_or_default();
    let rest = parts.map(|part| part.split_once('}').map_or("", |(_, rest)| rest));
    std::iter::once(first).chain(rest).collect()
}

/// Whether the only place with a password is one for passwords.
fn is_secret(given: &[(String, Value, usize)]) -> bool {
    given.iter().all(|(key, value, _)| key == "registry.proxies" || !value.to_string().contains(PASSWORD))
}

/// The document with these keys.
fn written(given: &[(String, Value, usize)], is_kubelets: bool) -> Value {
    let mut document = if is_kubelets { json!({"kind": "KubeletConfiguration"}) } else { json!({}) };
    for (key, value, _) in given {
        *key.split('.').fold(&mut document, |node, name| &mut node[name]) = value.clone();
    }
    document
}

/// Changes letters, and inserts lines of such files.
pub(crate) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &WORDS);
}
