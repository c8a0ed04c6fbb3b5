//! Error classes and stages, in stable words for programs (`docs/errors.md`).

use std::time::Duration;

use crate::text::named_enum;

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum ErrorClass {
        NameInvalid = "name-invalid",
        NotPresent = "not-present",
        HeldBack = "held-back",
        RateExceeded = "rate-exceeded",
        CredentialsUnreadable = "credentials-unreadable",
        RecordFailed = "record-failed",
        HostNotFound = "host-not-found",
        ConnectionRefused = "connection-refused",
        Unreachable = "unreachable",
        ConnectionLost = "connection-lost",
        CertificateInvalid = "certificate-invalid",
        TlsFailed = "tls-failed",
        ProxyFailed = "proxy-failed",
        Unauthorized = "unauthorized",
        Forbidden = "forbidden",
        ImageUnknown = "image-unknown",
        BlobUnknown = "blob-unknown",
        RateLimited = "rate-limited",
        RegistryFailed = "registry-failed",
        AnswerInvalid = "answer-invalid",
        PlatformMissing = "platform-missing",
        DigestMismatch = "digest-mismatch",
        ContentInvalid = "content-invalid",
        Unacceptable = "unacceptable",
        SignatureRejected = "signature-rejected",
        DiskFull = "disk-full",
        DiskFailed = "disk-failed",
        InUse = "in-use",
        RuntimeUnavailable = "runtime-unavailable",
        TimedOut = "timed-out",
        Cancelled = "cancelled",
        Unsupported = "unsupported",
        Other = "other",
    }
}

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum Stage {
        Name = "name",
        Policy = "policy",
        Queue = "queue",
        Credentials = "credentials",
        CredentialProvider = "credential-provider",
        Records = "records",
        Dns = "dns",
        Connect = "connect",
        Tls = "tls",
        Proxy = "proxy",
        Token = "token",
        Manifest = "manifest",
        Blob = "blob",
        Digest = "digest",
        Unpack = "unpack",
        Disk = "disk",
        Store = "store",
        Runtime = "runtime",
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Party {
    /// The registry or a mirror. Also the value if no party failed, for example if the disk is full.
    #[default]
    Registry,
    /// A token service on another origin than the registry.
    TokenService,
    /// The target of a redirect to another origin.
    RedirectTarget,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub class: ErrorClass,
    pub stage: Stage,
    /// The wait that the registry requests before a retry.
    pub retry_after: Option<Duration>,
    pub party: Party,
}

impl Fault {
    pub fn new(class: ErrorClass, stage: Stage) -> Self {
        Self { class, stage, retry_after: None, party: Party::Registry }
    }

    /// Whether name resolution, connection, TLS or proxy failed, so that no repository of the party is reachable.
    pub fn is_unreached(&self) -> bool {
        match self.class {
            ErrorClass::HostNotFound
            | ErrorClass::ConnectionRefused
            | ErrorClass::Unreachable
            | ErrorClass::CertificateInvalid
            | ErrorClass::TlsFailed
            | ErrorClass::ProxyFailed => true,
            ErrorClass::TimedOut => matches!(self.stage, Stage::Connect | Stage::Tls),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn words_are_kebab_case_and_each_stands_for_one() {
        let words: Vec<&str> = ErrorClass::ALL.iter().map(|class| class.name()).collect();
        let hops: Vec<&str> = Stage::ALL.iter().map(|stage| stage.name()).collect();
        for words in [words, hops] {
            assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len());
            let is_kebab = |word: &str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
            assert!(words.iter().all(|word| is_kebab(word)), "{words:?}");
        }
    }

    #[test]
    fn the_documentation_has_a_row_for_each_word() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md");
        let page = std::fs::read_to_string(path).expect("the page is there");
        for word in ErrorClass::ALL.iter().map(|class| class.name()).chain(Stage::ALL.iter().map(|stage| stage.name()))
        {
            assert!(page.lines().any(|line| line.starts_with(&format!("| `{word}` |"))), "no row for `{word}`");
        }
    }
}
