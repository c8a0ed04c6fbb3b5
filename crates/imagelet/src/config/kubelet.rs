//! Keys of a kubelet's file that tell what the kubelet itself does with images: read, checked in its words, and shown.

use std::{collections::BTreeMap, fmt, time::Duration};

use imagelet_core::{
    eviction::{self, SignalTexts, Threshold, ThresholdError, ThresholdTexts},
    text::quoted,
};

use serde::{Deserialize, Serialize};

use super::{File, GoDuration, validate::Complaints};

/// Keys whose value is a map of texts: their own keys have dots in them and are no levels of the file.
pub(super) const MAPS: [&str; 4] =
    ["evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim"];

/// The keys taken from a kubelet's file; everything else in it is not about images.
pub(super) const KUBELET_KEYS: [&str; 29] = [
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "imageMinimumGCAge",
    "imageMaximumGCAge",
    "serializeImagePulls",
    "maxParallelImagePulls",
    "registryPullQPS",
    "registryBurst",
    "runtimeRequestTimeout",
    "imagePullCredentialsVerificationPolicy",
    "preloadedImagesVerificationAllowlist",
    "featureGates",
    "maxPods",
    "nodeStatusMaxImages",
    "nodeStatusUpdateFrequency",
    "nodeStatusReportFrequency",
    "containerRuntimeEndpoint",
    "imageServiceEndpoint",
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "evictionMinimumReclaim",
    "evictionPressureTransitionPeriod",
    "mergeDefaultEvictionSettings",
    "localStorageCapacityIsolation",
    "eventRecordQPS",
    "eventBurst",
    "tracing",
    "podInfraContainerImage",
];

/// The runtime behind a socket so called is the one whose stores the kubelet looks at itself.
const CRIO_SOCKET: &str = "run/crio/crio.sock";

/// `featureGates` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FeatureGatesFile {
    /// Keep on record what was pulled for whom, and let nobody else use it. `false`: every pod may use what is on the node.
    #[serde(rename = "KubeletEnsureSecretPulledImages", skip_serializing_if = "Option::is_none")]
    pub(super) ensure_secret_pulled_images: Option<bool>,
    /// Whether `imageMaximumGCAge` may be set; the kubelet has locked this gate on.
    #[serde(rename = "ImageMaximumGCAge", skip_serializing_if = "Option::is_none")]
    pub(super) image_maximum_gc_age: Option<bool>,
}

/// `tracing` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TracingFile {
    /// `HOST:PORT`, `dns:`, `unix:` or `unix-abstract:`. Checked and shown; imagelet exports no traces.
    #[serde(rename = "endpoint", skip_serializing_if = "Option::is_none")]
    pub(super) endpoint: Option<String>,
    /// Of a million requests so many are traced. Checked and shown.
    #[serde(rename = "samplingRatePerMillion", skip_serializing_if = "Option::is_none")]
    pub(super) sampling_rate: Option<i32>,
}

/// What a kubelet on this node does with images.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeSettings {
    /// So many images are listed on the Node; `None`: all.
    pub(crate) status_images_max: Option<usize>,
    /// So many pods run on the node; what is kept in memory of pulls is made for so many.
    pub(crate) pods_max: usize,
    /// How often the Node's status is computed.
    pub(crate) status_update: Duration,
    /// How often it is sent although nothing changed.
    pub(crate) status_report: Duration,
    /// When the kubelet calls the node short of something.
    pub(crate) thresholds: Vec<Threshold>,
    /// For how long after that it goes on to say so.
    pub(crate) pressure_transition: Duration,
    /// Where the kubelet asks for images: this daemon, where it stands between the two.
    pub(crate) image_endpoint: String,
    /// The kubelet knows of two disks, one of images and one of writable layers; by the socket, it asks CRI-O alone.
    pub(crate) splits_disks: bool,
}

// Thresholds hold shares, and no share is unlike itself: what is no number was refused.
impl Eq for NodeSettings {}

impl File {
    /// What is wrong with a file of ours that names a runtime by the kubelet's key and lets imagelet ask another one, or none.
    pub(super) fn unasked_runtime(&self) -> Option<String> {
        let named = self.runtime_endpoint.as_ref().filter(|endpoint| !endpoint.is_empty())?;
        let cri = self.image_service.as_ref().and_then(|service| service.cri.as_ref());
        let mut asked = [
            cri.and_then(|cri| cri.endpoint.as_ref()),
            self.store.as_ref().and_then(|store| store.runtime_endpoint.as_ref()),
        ]
        .into_iter()
        .flatten();
        (!asked.any(|endpoint| endpoint == named)).then(|| {
            format!(
                "containerRuntimeEndpoint: this is where the kubelet asks, and imagelet does not ask `{named}` for it: \
                 name it as imageService.cri.endpoint to manage the images in that runtime, or as store.runtimeEndpoint \
                 if it runs containers from imagelet's own store"
            )
        })
    }
}

/// Checks them, in the kubelet's order.
pub(super) fn check(file: &File, complaints: &mut Complaints) -> NodeSettings {
    let images_max = file.status_images_max.unwrap_or(-1);
    if images_max < -1 {
        complaints.add(
            "nodeStatusMaxImages",
            format!("nodeStatusMaxImages (--node-status-max-images) {images_max} must be -1 or greater"),
        );
    }
    let pods_max = file.pods_max.unwrap_or_default();
    if pods_max < 0 {
        complaints.add("maxPods", format!("maxPods (--max-pods) {pods_max} must not be a negative number"));
    }
    if let Some(false) = file.feature_gates.as_ref().and_then(|gates| gates.image_maximum_gc_age)
        && file.gc_age_max.is_some_and(|age| age.0 != 0)
    {
        complaints.add_of(
            &["imageMaximumGCAge", "featureGates.ImageMaximumGCAge"],
            "ImageMaximumGCAge feature gate is required for Kubelet configuration option imageMaximumGCAge",
        );
    }
    let endpoint = file.runtime_endpoint.clone().unwrap_or_default();
    if endpoint.is_empty() {
        complaints.add("containerRuntimeEndpoint", "the containerRuntimeEndpoint was not specified or empty");
    }
    tracing_keys(file, complaints);
    let thresholds = thresholds(file).unwrap_or_else(|(key, error)| {
        complaints.add(key, error);
        Vec::new()
    });
    let asks_crio = endpoint.ends_with(CRIO_SOCKET);
    let image_endpoint = file.image_endpoint.clone().filter(|endpoint| !endpoint.is_empty()).unwrap_or(endpoint);
    let span = |duration: Option<GoDuration>| duration.unwrap_or_default().to_std();
    NodeSettings {
        status_images_max: usize::try_from(images_max).ok(),
        pods_max: usize::try_from(pods_max).unwrap_or_default(),
        status_update: span(file.status_update),
        status_report: span(file.status_report),
        thresholds,
        pressure_transition: span(file.pressure_transition),
        image_endpoint,
        splits_disks: asks_crio,
    }
}

/// All thresholds, or what is wrong and in which map.
fn thresholds(file: &File) -> Result<Vec<Threshold>, (&'static str, ThresholdError)> {
    let map = |map: &Option<BTreeMap<String, String>>| map.clone().unwrap_or_default();
    let mut hard = map(&file.eviction_hard);
    if file.merge_eviction_defaults.unwrap_or_default() {
        let defaults = eviction::defaults();
        hard = defaults.into_iter().chain(hard).collect();
    }
    let (soft, soft_grace, reclaim_min) =
        (map(&file.eviction_soft), map(&file.eviction_soft_grace), map(&file.eviction_reclaim_min));
    let none = SignalTexts::new();
    let nothing = ThresholdTexts { hard: &none, soft: &none, soft_grace: &none, reclaim_min: &none };
    for (key, alone) in [
        ("evictionHard", ThresholdTexts { hard: &hard, ..nothing }),
        ("evictionSoftGracePeriod", ThresholdTexts { soft_grace: &soft_grace, ..nothing }),
        ("evictionMinimumReclaim", ThresholdTexts { reclaim_min: &reclaim_min, ..nothing }),
    ] {
        eviction::thresholds(alone).map_err(|error| (key, error))?;
    }
    let all = ThresholdTexts { hard: &hard, soft: &soft, soft_grace: &soft_grace, reclaim_min: &reclaim_min };
    eviction::thresholds(all).map_err(|error| ("evictionSoft", error))
}

fn tracing_keys(file: &File, complaints: &mut Complaints) {
    let Some(tracing) = &file.tracing else { return };
    if let Some(rate) = tracing.sampling_rate {
        let key = "tracing.samplingRatePerMillion";
        if rate < 0 {
            complaints.add_bare(key, format!("{key}: Invalid value: {rate}: sampling rate must be positive"));
        } else if rate > 1_000_000 {
            let most = "sampling rate per million must be less than or equal to one million";
            complaints.add_bare(key, format!("{key}: Invalid value: {rate}: {most}"));
        }
    }
    if let Some(endpoint) = &tracing.endpoint
        && let Err(refused) = check_target(endpoint)
    {
        complaints.add_bare("tracing.endpoint", format!("tracing.endpoint: Invalid value: {refused}"));
    }
}

/// An address that gRPC can dial, or why it is none, quoted as Go quotes it.
#[derive(Debug)]
struct Refused {
    target: String,
    why: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", quoted(&self.target), self.why)
    }
}

/// Goes by the rules of Go's `url.Parse`, as far as they tell good targets from bad ones.
fn check_target(endpoint: &str) -> Result<(), Refused> {
    let target = if endpoint.contains("//") { endpoint.to_owned() } else { format!("dns://{endpoint}") };
    let refuse = |why: String| Err(Refused { target: target.clone(), why });
    let unparsed = |why: &str| refuse(format!("parse {}: {why}", quoted(&target)));
    if target.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return unparsed("net/url: invalid control character in URL");
    }
    if target.starts_with(':') {
        return unparsed("missing protocol scheme");
    }
    let end = target.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c))).unwrap_or(target.len());
    let is_scheme = target[end..].starts_with(':') && target.starts_with(|c: char| c.is_ascii_alphabetic());
    if !is_scheme {
        let first = target.split('/').next().unwrap_or_default();
        if first.contains(':') {
            return unparsed("first path segment in URL cannot contain colon");
        }
        return unsupported(&target, "");
    }
    let (scheme, rest) = (target[..end].to_ascii_lowercase(), &target[end + 1..]);
    let authority = rest.strip_prefix("//").map(|rest| rest.split('/').next().unwrap_or_default()).unwrap_or_default();
    let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|_| !authority.ends_with(']'));
    if let Some(port) = port.filter(|port| !port.bytes().all(|byte| byte.is_ascii_digit())) {
        return unparsed(&format!("invalid port {} after host", quoted(&format!(":{port}"))));
    }
    if let Some(at) = rest.match_indices('%').map(|(at, _)| at).find(|at| !is_escape(&rest[*at..])) {
        let escape: String = rest[at..].chars().take(3).collect();
        return unparsed(&format!("invalid URL escape {}", quoted(&escape)));
    }
    if matches!(scheme.as_str(), "dns" | "unix" | "unix-abstract") { Ok(()) } else { unsupported(&target, &scheme) }
}

fn unsupported(target: &str, scheme: &str) -> Result<(), Refused> {
    let why = format!("unsupported scheme: {scheme}.  Options are none, dns, unix, or unix-abstract");
    Err(Refused { target: target.to_owned(), why })
}

fn is_escape(text: &str) -> bool {
    let digits = text.as_bytes().get(1..3);
    digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Layers};

    #[test]
    fn the_sandbox_image_is_taken_from_the_kubelets_file_and_from_our_own() {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let settings = |kubelet: &str, own: &str| {
            let mut layers = Layers::new(Environment { root: true, ..Environment::default() });
            let file = |name: &str, text: &str| {
                let path = folder.path().join(name);
                std::fs::write(&path, text).expect("the test's file is written");
                path
            };
            let kubelet = file("kubelet.yaml", &format!("kind: KubeletConfiguration\n{kubelet}"));
            layers.add_kubelet_file(&kubelet).expect("it is read");
            layers.add_file(&file("imagelet.yaml", &format!("socket: /s\n{own}"))).expect("it is read");
            layers.settings()
        };
        let names = |kubelet: &str, own: &str| {
            let names = settings(kubelet, own).expect("it holds").sandbox_images;
            names.map(|names| names.iter().map(|name| name.text().to_owned()).collect::<Vec<_>>())
        };
        let (of_kubelet, of_ours) = ("podInfraContainerImage: a.example/pause:1\n", "sandboxImage: b.example/pause\n");
        assert_eq!(names("", ""), Some(Vec::new()));
        assert_eq!(
            names(of_kubelet, of_ours),
            Some(vec!["a.example/pause:1".to_owned(), "b.example/pause".to_owned()])
        );
        assert_eq!(names("", of_kubelet), Some(vec!["a.example/pause:1".to_owned()]));
        assert_eq!(names(of_kubelet, "compatibility: kubelet\n"), None, "only the runtime's own pin holds there");
        for name in ["'*'", "'a*'", "UPPER", "'a b'", "'a@b'"] {
            let refused = settings("", &format!("sandboxImage: {name}\n")).expect_err("refused").to_string();
            assert!(refused.contains("imagelet.yaml:2: invalid configuration: sandboxImage `"), "{refused}");
        }
    }

    #[test]
    fn the_number_of_pods_is_taken_from_the_kubelets_file_and_from_our_own() {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let settings = |kubelet: &str, own: &str| {
            let mut layers = Layers::new(Environment { root: true, ..Environment::default() });
            let (file, ours) = (folder.path().join("kubelet.yaml"), folder.path().join("imagelet.yaml"));
            std::fs::write(&file, format!("kind: KubeletConfiguration\n{kubelet}")).expect("a file");
            std::fs::write(&ours, format!("socket: /s\n{own}")).expect("a file");
            layers.add_kubelet_file(&file).expect("it is read");
            layers.add_file(&ours).expect("it is read");
            layers.settings()
        };
        for (kubelet, own, pods) in [
            ("", "", 110),
            ("maxPods: 250\n", "", 250),
            ("maxPods: 250\n", "maxPods: 30\n", 30),
            ("maxPods: 0\n", "", 110),
        ] {
            assert_eq!(settings(kubelet, own).expect("it holds").node.pods_max, pods, "{kubelet}{own}");
        }
        let refused = settings("", "maxPods: -1\n").expect_err("refused").to_string();
        assert!(refused.contains("maxPods (--max-pods) -1 must not be a negative number"), "{refused}");
    }

    #[test]
    fn targets_are_refused_in_gos_words() {
        for good in ["localhost:4317", "dns://localhost:4317", "unix:///run/x.sock", "unix-abstract://x", "", "[::1]:1"]
        {
            assert!(check_target(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            (
                "dn%2s://localhost:4317",
                "\"dn%2s://localhost:4317\": parse \"dn%2s://localhost:4317\": first path segment in URL cannot \
                 contain colon",
            ),
            ("http://x", "\"http://x\": unsupported scheme: http.  Options are none, dns, unix, or unix-abstract"),
            (
                "localhost:port",
                "\"dns://localhost:port\": parse \"dns://localhost:port\": invalid port \":port\" after host",
            ),
            ("://x", "\"://x\": parse \"://x\": missing protocol scheme"),
        ] {
            assert_eq!(check_target(bad).unwrap_err().to_string(), why);
        }
    }
}
