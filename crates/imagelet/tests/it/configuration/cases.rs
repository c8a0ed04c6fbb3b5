//! The table: files that are no configuration, and why.

use serde_json::{Value, json};

/// The first lines of a file of ours.
const OWN: &str = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\n";
/// The first lines of a kubelet's file.
const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Own,
    Kubelet,
}

/// What is wrong with it; the words of B116, and what may happen to any file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wrong {
    UnknownKey,
    OtherType,
    OutOfRange,
    Contradiction,
    Duplicate,
    BrokenYaml,
    OtherDocument,
    NoText,
    TooMuch,
    NoFile,
}

impl Wrong {
    pub(super) const ALL: [Self; 10] = [
        Self::UnknownKey,
        Self::OtherType,
        Self::OutOfRange,
        Self::Contradiction,
        Self::Duplicate,
        Self::BrokenYaml,
        Self::OtherDocument,
        Self::NoText,
        Self::TooMuch,
        Self::NoFile,
    ];
}

/// What is at the path.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Text(String),
    Bytes(Vec<u8>),
    Nothing,
    Directory,
    Dangling,
    Loop,
    Device,
    Pipe,
}

/// One file that must be refused.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) wrong: Wrong,
    pub(super) kind: Kind,
    pub(super) what: String,
    pub(super) content: Content,
    /// Where the complaint must point; `None` where no line is to blame.
    pub(super) line: Option<usize>,
    /// What it must say beside.
    pub(super) words: Vec<&'static str>,
}

impl Case {
    /// Whether `--socket` and `--store` take the place of what is wrong: a flag wins, and its key is not looked at.
    pub(super) fn is_hidden_by_flags(&self) -> bool {
        let Content::Text(text) = &self.content else { return false };
        let is_path = |key: &str| text.contains(key);
        let out_of_range = self.wrong == Wrong::OutOfRange || self.what == "a socket's path without end";
        out_of_range && ["socket:", "directory:", "endpoint:"].into_iter().any(is_path)
    }
}

pub(super) fn all() -> Vec<Case> {
    [unknown_keys(), wrong_types(), out_of_range(), documents(), too_much(), no_files(), kubelets()].concat()
}

/// A file of ours; the line is counted from 1 in the text behind its two first lines.
fn own(wrong: Wrong, what: &str, text: &str, line: usize, words: &[&'static str]) -> Case {
    whole(wrong, Kind::Own, what, format!("{OWN}{text}"), Some(line + 2), words)
}

fn kubelet(wrong: Wrong, what: &str, text: &str, line: usize, words: &[&'static str]) -> Case {
    let what = format!("kubelet: {what}");
    whole(wrong, Kind::Kubelet, &what, format!("{KUBELET}{text}"), Some(line + 2), words)
}

fn whole(
    wrong: Wrong,
    kind: Kind,
    what: &str,
    text: impl Into<String>,
    line: Option<usize>,
    words: &[&'static str],
) -> Case {
    Case { wrong, kind, what: what.into(), content: Content::Text(text.into()), line, words: words.to_vec() }
}

fn unknown_keys() -> Vec<Case> {
    use Wrong::UnknownKey as Unknown;
    vec![
        own(Unknown, "a misspelt key", "imageGCHighTresholdPercent: 70\n", 1, &["`imageGCHighTresholdPercent`"]),
        own(Unknown, "a key in other letters", "registryBurst: 5\nregistrypullqps: 5\n", 2, &["`registrypullqps`"]),
        own(Unknown, "a key of another program", "clusterDNS: [10.0.0.10]\n", 1, &["`clusterDNS`"]),
        own(Unknown, "an unknown key of the second level", "store:\n  layers: 2\n", 2, &["`layers`", "layersInFlight"]),
        own(Unknown, "one of the third level", "store:\n  limits:\n    bytesMax: 5\n", 3, &["`bytesMax`"]),
        own(Unknown, "one below imageService.cri", "imageService:\n  cri:\n    timeout: 5s\n", 3, &["`timeout`"]),
        own(Unknown, "one below http", "http:\n  tls: true\n", 2, &["`tls`"]),
        own(Unknown, "one below registry", "registry:\n  mirrors: {}\n", 2, &["`mirrors`"]),
        own(Unknown, "one below credentials", "credentials:\n  password: x\n", 2, &["`password`"]),
        own(Unknown, "one below detection", "detection:\n\n  # how often\n  every: 5m\n", 4, &["`every`"]),
        own(Unknown, "one below gc", "gc:\n  period: 5m\n  dry: true\n", 3, &["`dry`"]),
        own(Unknown, "the section's former name", "collection:\n  period: 5m\n", 1, &["`collection`"]),
        own(Unknown, "one below gc.decisions", "gc:\n  decisions:\n    maxSize: 1Mi\n", 3, &["`maxSize`"]),
        own(Unknown, "one in a rule", "gc:\n  keep:\n  - image: a\n    until: 5m\n", 4, &["`until`"]),
        own(Unknown, "one on a line with others", "store: {directory: /s, limits: {bogus: 1}}\n", 1, &["`bogus`"]),
        own(Unknown, "a key of the first level on the second", "store:\n  registryBurst: 5\n", 2, &["`registryBurst`"]),
        own(Unknown, "a key of the second level on the first", "directory: /s\n", 1, &["`directory`"]),
        own(Unknown, "an empty key", "\"\": 1\n", 1, &["``"]),
        own(Unknown, "a key with spaces around it", "' socket': /s\n", 1, &["` socket`"]),
        own(
            Unknown,
            "a merge of an unknown anchor's keys",
            "base: &b {directory: /s}\nstore: {<<: *b}\n",
            1,
            &["`base`"],
        ),
    ]
}

fn wrong_types() -> Vec<Case> {
    use Wrong::OtherType as Type;
    vec![
        own(Type, "a word for a number", "registryPullQPS: many\n", 1, &["registryPullQPS", "many"]),
        own(Type, "a text in quotes for a number", "registryPullQPS: '5'\n", 1, &["registryPullQPS", "expected i32"]),
        own(Type, "a fraction for a whole number", "imageGCHighThresholdPercent: 80.5\n", 1, &["80.5"]),
        own(Type, "infinity for a number", "registryPullQPS: .inf\n", 1, &[".inf"]),
        own(Type, "a number that no integer holds", "registryBurst: 99999999999\n", 1, &["99999999999"]),
        own(Type, "a list for a number", "store:\n  limits:\n    entriesMax: [1]\n", 3, &["entriesMax"]),
        own(Type, "a percent sign", "imageGCHighThresholdPercent: 80%\n", 1, &["80%"]),
        own(Type, "a number for true or false", "serializeImagePulls: 1\n", 1, &["serializeImagePulls", "`1`"]),
        own(Type, "a text in quotes for true or false", "serializeImagePulls: 'true'\n", 1, &["boolean"]),
        own(Type, "a list for a text", "socket: [/s]\n", 1, &["socket"]),
        own(Type, "a mapping for a text", "socket: {path: /s}\n", 1, &["socket"]),
        own(Type, "a text for a list", "preloadedImagesVerificationAllowlist: a\n", 1, &["sequence"]),
        own(Type, "a mapping in a list of texts", "preloadedImagesVerificationAllowlist:\n- a: b\n", 2, &["string"]),
        own(Type, "a number for a level", "store: 5\n", 1, &["store: expected a mapping"]),
        own(Type, "a list for a level", "store:\n- directory: /s\n", 1, &["mapping"]),
        own(Type, "a duration without a unit", "imageMinimumGCAge: 5\n", 1, &["missing unit in duration \"5\""]),
        own(Type, "a duration in days", "detection:\n  period: 1d\n", 2, &["unknown unit \"d\" in duration \"1d\""]),
        own(Type, "a duration of no time on earth", "imageMaximumGCAge: 9999999999h\n", 1, &["9999999999h"]),
        own(Type, "a size that is none", "store:\n  limits: {freeBytesFloor: lots}\n", 2, &["`lots` is no size"]),
        own(Type, "a rule that is a word", "gc:\n  keep:\n  - busybox\n", 3, &["busybox"]),
        own(Type, "a mapping for rules", "gc:\n  keep:\n    image: busybox\n", 2, &["sequence"]),
        own(
            Type,
            "a word for a number of tags",
            "gc:\n  keep:\n  - repository: a\n    lastTags: all\n",
            4,
            &["lastTags"],
        ),
        own(
            Type,
            "a rule for a day",
            "gc:\n  keep:\n  - image: a\n    for: 1d\n",
            4,
            &["unknown unit \"d\" in duration \"1d\""],
        ),
        own(Type, "a size of decisions that is none", "gc: {decisions: {maxBytes: big}}\n", 1, &["`big` is no size"]),
        own(Type, "a word for percents", "gc:\n  inodesHighPercent: most\n", 2, &["inodesHighPercent", "most"]),
        own(Type, "a word for ownership", "gc:\n  onlyOwned: mine\n", 2, &["onlyOwned", "mine"]),
        own(Type, "bytes that are no text", "socket: !!binary /w==\n", 1, &["binary"]),
    ]
}

fn out_of_range() -> Vec<Case> {
    use Wrong::{Contradiction, OutOfRange as Range};
    vec![
        own(Range, "more than all of a disk", "imageGCHighThresholdPercent: 101\n", 1, &["between 0 and 100"]),
        own(Range, "less than nothing of a disk", "imageGCLowThresholdPercent: -1\n", 1, &["between 0 and 100"]),
        own(Range, "a rate below zero", "registryPullQPS: -1\n", 1, &["must not be a negative number"]),
        own(Range, "a burst below zero", "registryBurst: -1\n", 1, &["must not be a negative number"]),
        own(Range, "no parallel pulls", "maxParallelImagePulls: 0\n", 1, &["must be a positive number"]),
        own(Range, "no layers in flight", "store:\n  layersInFlight: 0\n", 2, &["between 1 and 64"]),
        own(Range, "too many layers in flight", "store: {layersInFlight: 65}\n", 1, &["between 1 and 64"]),
        own(Range, "no expansion", "store:\n  limits:\n    expansionMax: 0\n", 3, &["between 1 and 100000"]),
        own(Range, "no entries", "store:\n  limits:\n    entriesMax: 0\n", 3, &["between 1 and 100000000"]),
        own(Range, "a negative floor", "store:\n  limits:\n    freeInodesFloor: -1\n", 3, &["between 0 and"]),
        own(Range, "a negative age", "imageMinimumGCAge: -1s\n", 1, &["must not be negative"]),
        own(Range, "a negative maximum age", "imageMaximumGCAge: -1s\n", 1, &["must not be negative"]),
        own(Range, "no time for a runtime", "runtimeRequestTimeout: -1s\n", 1, &["must be positive"]),
        own(Range, "a loop that never rests", "gc:\n  period: 999ms\n", 2, &["gc.period", "at least 1s"]),
        own(
            Range,
            "a period on the line of the other's",
            "gc: {period: 1m}\ndetection: {period: 0s}\n",
            2,
            &["detection.period"],
        ),
        own(
            Range,
            "an age that nobody watches for",
            "imageMaximumGCAge: 24h\ngc: {enabled: false}\ndetection: {period: 1h}\n",
            3,
            &["imageMaximumGCAge needs detection.period", "shorter than 1h"],
        ),
        own(Range, "a mode nobody knows", "gc:\n  mode: dry\n", 2, &["`dry`", "shadow"]),
        own(Range, "an order nobody knows", "gc:\n  policy: fifo\n", 2, &["`fifo`", "lru"]),
        own(Range, "nearly full beyond full", "gc:\n  critical: 101\n", 2, &["gc.critical 101", "between 0 and 100"]),
        own(Range, "idle for less than nothing", "gc: {outOfReachIdle: -1h}\n", 1, &["must not be negative"]),
        own(Range, "no inodes at all", "gc:\n  inodesHighPercent: 0\n", 2, &["between 1 and 100"]),
        own(Range, "less than no inodes", "gc:\n  inodesLowPercent: -1\n", 2, &["between 0 and 100"]),
        own(Range, "a lease below zero", "gc:\n  leaseFor: -1s\n", 2, &["between 0s and 168h0m0s"]),
        own(
            Range,
            "a lease shorter than a look for its container",
            "imageMinimumGCAge: 30s\ngc:\n  leaseFor: 4m\n",
            3,
            &["leaseFor 4m0s", "detection.period 5m0s", "imageMinimumGCAge 30s"],
        ),
        own(
            Range,
            "a lease shorter than the minimum age",
            "imageMinimumGCAge: 1h\ngc: {leaseFor: 10m}\n",
            2,
            &["leaseFor 10m0s", "imageMinimumGCAge 1h0m0s"],
        ),
        own(
            Range,
            "a lease the kubelet would not give",
            "compatibility: kubelet\ngc: {leaseFor: 10m}\n",
            2,
            &["leaseFor 10m0s", "compatibility `kubelet`"],
        ),
        own(
            Range,
            "an import now and then",
            "runtimeImport: sometimes\n",
            1,
            &["runtimeImport: unknown variant `sometimes`", "require"],
        ),
        own(Range, "a lease for a month", "gc: {leaseFor: 720h}\n", 1, &["between 0s and 168h0m0s"]),
        own(Range, "a log for one decision", "gc:\n  decisions:\n    maxBytes: 1Ki\n", 3, &["`1Ki`", "64Ki"]),
        own(Range, "a log larger than disks", "gc:\n  decisions:\n    maxBytes: 1P\n", 3, &["`1P`", "16Gi"]),
        own(Range, "no tags", "gc:\n  keep:\n  - image: a\n  - {repository: a, lastTags: 0}\n", 4, &["1 and 10000"]),
        own(Range, "tags without end", "gc:\n  keep: [{repository: a, lastTags: 99999}]\n", 2, &["1 and 10000"]),
        own(Range, "a rule for less than no time", "gc: {keep: [{image: a, for: -1s}]}\n", 1, &["not be negative"]),
        own(Range, "a rule for no time", "gc:\n  keep:\n  - image: a\n    for: 0s\n", 3, &["no time"]),
        own(Range, "a pin of everything", "gc:\n  keep:\n  - image: '*'\n", 3, &["gc.keep[0]", "every image"]),
        own(
            Range,
            "a pin of no name",
            "gc:\n  keep:\n  - image: a\n\n  - image: A\n",
            5,
            &["gc.keep[1]", "neither a reference"],
        ),
        own(Range, "a glob with blanks", "gc:\n  keep:\n  - namespace: a b\n", 3, &["namespace `a b`", "blanks"]),
        own(Range, "a label without a name", "gc:\n  keep:\n  - label: =x\n", 3, &["`=x`", "no name"]),
        own(
            Range,
            "a runtime that is none",
            "store:\n  runtimeEndpoint: tcp://127.0.0.1:1\n",
            2,
            &["store.runtimeEndpoint"],
        ),
        own(Range, "a durability nobody knows", "store:\n  durability: maybe\n", 2, &["`maybe`", "commit"]),
        own(
            Range,
            "a policy nobody knows",
            "imagePullCredentialsVerificationPolicy: Sometimes\n",
            1,
            &["Sometimes", "AlwaysVerify"],
        ),
        own(Range, "a relative socket", "socket: run/imagelet.sock\n", 1, &["absolute"]),
        own(Range, "a socket with a NUL", "socket: \"/run/a\\0b\"\n", 1, &["NUL"]),
        own(Range, "a relative store", "store:\n  directory: images\n", 2, &["absolute"]),
        own(Range, "a relative folder of registries", "registry:\n  configPath: /a:b\n", 2, &["`b`", "absolute"]),
        own(Range, "no connections", "registry:\n  connectionsPerHost: 0\n", 2, &["between 1 and 1000"]),
        own(Range, "no time for an answer", "registry:\n  headTimeout: 0s\n", 2, &["at least 1s"]),
        own(
            Range,
            "more time for an answer than for a byte",
            "registry:\n  headTimeout: 3m0s\n",
            2,
            &["registry.headTimeout", "must not exceed pulls.progressDeadline of 1m0s"],
        ),
        own(Range, "a bandwidth of a few bytes", "pulls: {bandwidth: '1000'}\n", 1, &["`1000`", "at least 1Ki"]),
        own(Range, "a relative docker configuration", "credentials:\n  dockerConfig: c.json\n", 2, &["absolute"]),
        own(Range, "an address without a port", "http:\n  address: localhost\n", 2, &["HOST:PORT"]),
        own(Range, "a port that is none", "http:\n  address: localhost:65536\n", 2, &["HOST:PORT"]),
        own(Range, "an endpoint over TCP", "imageService: {cri: {endpoint: 'tcp://h:1'}}\n", 1, &["unix socket"]),
        own(Range, "a relative endpoint", "imageService: {cri: {endpoint: 'unix://s'}}\n", 1, &["absolute path"]),
        own(
            Range,
            "a pattern with a tag",
            "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n\
             preloadedImagesVerificationAllowlist: ['a:v1']\n",
            2,
            &["neither tag nor digest"],
        ),
        own(
            Contradiction,
            "a low threshold above the default high",
            "imageGCLowThresholdPercent: 90\n",
            1,
            &["less than"],
        ),
        own(
            Contradiction,
            "a high threshold at the default low",
            "imageGCHighThresholdPercent: 80\n",
            1,
            &["less than"],
        ),
        own(Contradiction, "a greatest age below the default least", "imageMaximumGCAge: 1m\n", 1, &["greater than"]),
        own(
            Contradiction,
            "a least age above the greatest",
            "imageMaximumGCAge: 5m\nimageMinimumGCAge: 1h\n",
            1,
            &["greater than"],
        ),
        own(
            Contradiction,
            "serial and parallel",
            "serializeImagePulls: true\nmaxParallelImagePulls: 3\n",
            2,
            &["larger than 1"],
        ),
        own(Contradiction, "fewer inodes than the default low", "gc: {inodesHighPercent: 90}\n", 1, &["less than"]),
        own(
            Contradiction,
            "inodes the wrong way round",
            "gc:\n  inodesHighPercent: 50\n  inodesLowPercent: 60\n",
            3,
            &["gc.inodesLowPercent 60 must be less than gc.inodesHighPercent 50"],
        ),
        own(
            Contradiction,
            "the kubelet's way with another policy",
            "compatibility: kubelet\ngc:\n  policy: cost\n",
            3,
            &["gc.policy `cost`", "compatibility `kubelet`"],
        ),
        own(Contradiction, "an empty rule", "gc:\n  keep:\n  - for: 5m\n", 3, &["gc.keep[0]", "exactly one of"]),
        own(
            Contradiction,
            "a rule of two kinds",
            "gc:\n  keep:\n  - image: a\n    label: b\n",
            3,
            &["gc.keep[0]", "exactly one of"],
        ),
        own(Contradiction, "a number of no tags", "gc: {keep: [{lastTags: 3}]}\n", 1, &["go together"]),
        own(Contradiction, "tags without a number", "gc: {keep: [{repository: a}]}\n", 1, &["go together"]),
        own(
            Contradiction,
            "a list nobody asks",
            "preloadedImagesVerificationAllowlist: [a]\n",
            1,
            &["NeverVerifyAllowlistedImages"],
        ),
    ]
}

fn documents() -> Vec<Case> {
    use Wrong::{BrokenYaml, Duplicate, OtherDocument, UnknownKey};
    let own_whole =
        |wrong, what: &str, text: &str, line, words: &[&'static str]| whole(wrong, Kind::Own, what, text, line, words);
    vec![
        own(Duplicate, "a key twice", "registryPullQPS: 1\nregistryPullQPS: 2\n", 2, &["duplicate", "registryPullQPS"]),
        own(Duplicate, "a key twice below", "store:\n  directory: /a\n  directory: /b\n", 3, &["duplicate"]),
        own(Duplicate, "a rule twice", "gc:\n  keep:\n  - image: a\n  - image: a\n", 4, &["gc.keep[1]", "twice"]),
        own(Duplicate, "a level twice", "store: {directory: /a}\nstore: {keepBlobs: true}\n", 2, &["duplicate"]),
        own(BrokenYaml, "an open brace", "store: {directory: /a\n", 1, &["unclosed"]),
        own(BrokenYaml, "an open quote", "socket: '/a\n", 2, &[]),
        own(BrokenYaml, "a tab", "store:\n\tdirectory: /a\n", 2, &["tab"]),
        own(BrokenYaml, "an alias of nothing", "socket: *nothing\n", 1, &["unknown anchor"]),
        own(BrokenYaml, "a list as a key", "? [a, b]\n: c\n", 1, &[]),
        own(BrokenYaml, "a line without a colon", "registryBurst: 5\nsocket\n", 2, &[]),
        own_whole(OtherDocument, "an empty file", "", None, &["empty"]),
        own_whole(OtherDocument, "a file of blanks", " \n\n", None, &["empty"]),
        own_whole(OtherDocument, "a list", "- a\n- b\n", Some(1), &["mapping"]),
        own_whole(OtherDocument, "a word", "hello\n", Some(1), &["mapping"]),
        own(OtherDocument, "two documents", "---\nkind: ImageletConfiguration\n", 2, &["multiple"]),
        own_whole(OtherDocument, "another kind", "kind: Pod\n", Some(1), &["`Pod`", "ImageletConfiguration"]),
        own_whole(
            OtherDocument,
            "a newer version",
            "apiVersion: imagelet.dev/v2\n",
            Some(1),
            &["imagelet.dev/v1alpha1"],
        ),
        own_whole(OtherDocument, "a kubelet's file as ours", KUBELET, Some(2), &["KubeletConfiguration"]),
        own_whole(
            OtherDocument,
            "a docker configuration",
            "{\n  \"auths\": {\"r\": {\"auth\": \"dTpw\"}}\n}",
            Some(2),
            &["`auths`"],
        ),
        own_whole(
            UnknownKey,
            "an unknown key in JSON",
            "{\n  \"kind\": \"ImageletConfiguration\",\n  \"stores\": {}\n}",
            Some(3),
            &["`stores`"],
        ),
    ]
}

fn too_much() -> Vec<Case> {
    use Wrong::{NoText, TooMuch};
    let bytes = |what: &str, bytes: Vec<u8>, line| Case {
        wrong: NoText,
        kind: Kind::Own,
        what: what.into(),
        content: Content::Bytes(bytes),
        line,
        words: vec!["UTF-8"],
    };
    let utf16: Vec<u8> = [0xff, 0xfe].into_iter().chain(OWN.encode_utf16().flat_map(u16::to_le_bytes)).collect();
    // Ten times ten times … the same word, in a list that may hold words.
    let mut bomb = String::from("imageService: &a0 {cri: {endpoint: x}}\n");
    bomb = (1..30).fold(bomb, |bomb, level| {
        let below = level - 1;
        format!("{bomb}store{level}: &a{level} [{}]\n", vec![format!("*a{below}"); 10].join(", "))
    });
    let lists = (1..8).fold(String::from("&l0 [x, x, x, x, x, x, x, x, x, x]"), |inner, level| {
        format!("&l{level} [{inner}, {}]", vec![format!("*l{}", level - 1); 9].join(", "))
    });
    vec![
        bytes("Latin-1", [OWN.as_bytes(), b"socket: /\xe4\n"].concat(), Some(3)),
        bytes("UTF-16", utf16, Some(1)),
        bytes("a file of noise", (0..=255).rev().collect(), Some(1)),
        whole(
            TooMuch,
            Kind::Own,
            "a file of a megabyte",
            format!("{OWN}# {}\n", "x".repeat(1 << 20)),
            None,
            &["longer"],
        ),
        whole(TooMuch, Kind::Own, "aliases of aliases below unknown keys", bomb, Some(5), &["aliases"]),
        own(TooMuch, "lists of aliases of lists", &format!("preloadedImagesVerificationAllowlist: {lists}\n"), 1, &[]),
        own(TooMuch, "a level in a level in a level", &format!("store: {}\n", "{a: ".repeat(10_000)), 1, &[]),
        own(
            TooMuch,
            "a list in a list in a list",
            &format!("preloadedImagesVerificationAllowlist: {}\n", "[".repeat(100_000)),
            1,
            &[],
        ),
        own(TooMuch, "a key without end", &format!("{}: 1\n", "k".repeat(1 << 18)), 1, &["key"]),
        own(TooMuch, "a value without end", &format!("registryPullQPS: {}\n", "9".repeat(1 << 18)), 1, &["9999"]),
        own(TooMuch, "a socket's path without end", &format!("socket: /{}\n", "s".repeat(1 << 18)), 1, &["107"]),
    ]
}

fn no_files() -> Vec<Case> {
    let case = |kind, what: &str, content, words: &[&'static str]| Case {
        wrong: Wrong::NoFile,
        kind,
        what: what.into(),
        content,
        line: None,
        words: words.to_vec(),
    };
    vec![
        case(Kind::Own, "nothing there", Content::Nothing, &["No such file"]),
        case(Kind::Own, "a directory", Content::Directory, &["directory"]),
        case(Kind::Own, "a link to nothing", Content::Dangling, &["No such file"]),
        case(Kind::Own, "a link to itself", Content::Loop, &["symbolic links"]),
        case(Kind::Own, "a device without end", Content::Device, &["no file"]),
        case(Kind::Own, "a pipe nobody writes to", Content::Pipe, &["empty"]),
        case(Kind::Kubelet, "kubelet: nothing there", Content::Nothing, &["No such file"]),
        case(Kind::Kubelet, "kubelet: a directory", Content::Directory, &["directory"]),
        case(Kind::Kubelet, "kubelet: a pipe nobody writes to", Content::Pipe, &["empty"]),
    ]
}

/// Keys of a kubelet's file that are not about images may be anything.
fn kubelets() -> Vec<Case> {
    use Wrong::{BrokenYaml, Contradiction, NoText, OtherDocument, OtherType, OutOfRange, TooMuch};
    let any = |wrong, what: &str, text: String, line, words: &[&'static str]| {
        whole(wrong, Kind::Kubelet, &format!("kubelet: {what}"), text, line, words)
    };
    vec![
        kubelet(OtherType, "a word for a number", "port: 1\nregistryBurst: many\n", 2, &["registryBurst", "many"]),
        kubelet(OtherType, "a text in quotes for a number", "registryPullQPS: '5'\n", 1, &["registryPullQPS"]),
        kubelet(OtherType, "a number for a duration", "imageMinimumGCAge: 0\n", 1, &["imageMinimumGCAge"]),
        kubelet(OtherType, "a word for a list", "preloadedImagesVerificationAllowlist: a\n", 1, &["Allowlist"]),
        kubelet(OutOfRange, "more than a disk", "imageGCHighThresholdPercent: 101\n", 1, &["between 0 and 100"]),
        kubelet(OutOfRange, "a rate below zero", "registryPullQPS: -5\n", 1, &["must not be a negative number"]),
        kubelet(Contradiction, "low above high", "imageGCLowThresholdPercent: 95\n", 1, &["less than"]),
        kubelet(BrokenYaml, "an open brace", "authentication: {anonymous: {enabled: false}\n", 1, &["unclosed"]),
        kubelet(BrokenYaml, "a tab", "authentication:\n\tanonymous: {}\n", 2, &["tab"]),
        any(OtherDocument, "a Pod", "apiVersion: v1\nkind: Pod\n".into(), Some(2), &["KubeletConfiguration"]),
        any(OtherDocument, "no kind", "apiVersion: v1\n".into(), None, &["KubeletConfiguration"]),
        any(OtherDocument, "our own file", OWN.into(), Some(2), &["KubeletConfiguration"]),
        any(OtherDocument, "a list", "- a\n".into(), Some(1), &["mapping"]),
        any(OtherDocument, "an empty file", String::new(), None, &["empty"]),
        any(TooMuch, "a file of a megabyte", format!("{KUBELET}# {}\n", "x".repeat(1 << 20)), None, &["longer"]),
        any(
            TooMuch,
            "aliases of aliases",
            (1..12).fold(format!("{KUBELET}a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"), |text, level| {
                format!("{text}a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 10].join(", "))
            }),
            Some(7),
            &["alias"],
        ),
        Case {
            content: Content::Bytes([KUBELET.as_bytes(), b"\n\xff\n"].concat()),
            ..kubelet(NoText, "bytes that are no text", "", 2, &["UTF-8"])
        },
    ]
}

/// Files that look like mistakes and are none, with a key and what must come of it.
pub(super) fn accepted() -> Vec<(String, &'static str, Value)> {
    let own = |text: &str| format!("{OWN}{text}");
    vec![
        (own("registryPullQPS: null\n"), "registryPullQPS", json!(5)),
        (own("registryPullQPS: 0\n"), "registryPullQPS", json!(0)),
        (own("imageMinimumGCAge: 0s\n"), "imageMinimumGCAge", json!("0s")),
        (own("imageMaximumGCAge: 0\n"), "imageMaximumGCAge", json!("0s")),
        (own("store:\n"), "store.unpackMemory", json!("160Mi")),
        (own("socket: '/run/5'\n"), "socket", json!("/run/5")),
        (own("store: &s {directory: /a}\n"), "store.directory", json!("/a")),
        (own("compatibility: kubelet\n"), "gc.policy", json!("lru")),
        (own("compatibility: kubelet\n"), "gc.inodesHighPercent", json!(100)),
        (own("gc: {critical: 80}\n"), "gc.outOfReachIdle", json!("1h0m0s")),
        (own("gc: {outOfReachIdle: 0s}\n"), "gc.critical", json!(95)),
        (own("gc: {inodesHighPercent: 100, inodesLowPercent: 100}\n"), "gc.inodesLowPercent", json!(100)),
        (
            own("gc: {keep: [{namespace: 'kube-*', for: 1h}]}\n"),
            "gc.keep",
            json!([{"namespace": "kube-*", "for": "1h0m0s"}]),
        ),
        (own("gc:\n  keep:\n"), "gc.keep", json!([])),
        (own("gc: {decisions: {maxBytes: '0'}}\n"), "gc.decisions.maxBytes", json!("0")),
        ("# nothing but defaults\n".into(), "registryBurst", json!(10)),
        (format!("\u{feff}{OWN}registryBurst: 7\n"), "registryBurst", json!(7)),
        (own("registryBurst: 7\n").replace('\n', "\r\n"), "registryBurst", json!(7)),
        (r#"{"kind": "ImageletConfiguration", "registryBurst": 7}"#.into(), "registryBurst", json!(7)),
    ]
}
