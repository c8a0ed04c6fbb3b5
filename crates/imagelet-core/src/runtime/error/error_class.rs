//! Error classes and stages, in stable words for machines (`docs/errors.md`).

use std::{fmt, time::Duration};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$one:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name { $($(#[$one])* $variant,)* }

        impl $name {
            /// All values, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The stable word.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words! {
    /// The class of an error.
    ErrorClass {
        /// The text is not an image name.
        NameInvalid = "name-invalid",
        /// The image is not present, or not accessible to this client, and the policy permits no pull.
        NotPresent = "not-present",
        /// A recent failure; the back-off has not ended.
        HeldBack = "held-back",
        /// Too many pulls at once.
        RateExceeded = "rate-exceeded",
        /// A pull secret cannot be read.
        CredentialsUnreadable = "credentials-unreadable",
        /// The pull records cannot be read or written.
        RecordFailed = "record-failed",
        /// The registry's host name does not resolve.
        HostNotFound = "host-not-found",
        /// No process listens at the address.
        ConnectionRefused = "connection-refused",
        /// No route, or no response in time.
        Unreachable = "unreachable",
        /// The connection broke.
        ConnectionLost = "connection-lost",
        /// The certificate is not trusted.
        CertificateInvalid = "certificate-invalid",
        /// No TLS, or no common TLS version.
        TlsFailed = "tls-failed",
        /// The proxy rejected the connection.
        ProxyFailed = "proxy-failed",
        /// The registry requires a credential, or another one.
        Unauthorized = "unauthorized",
        /// The registry rejects a valid credential.
        Forbidden = "forbidden",
        /// The registry does not have the image.
        ImageUnknown = "image-unknown",
        /// The registry lacks a part of the image.
        BlobUnknown = "blob-unknown",
        /// The registry limits the rate.
        RateLimited = "rate-limited",
        /// The registry has a server error.
        RegistryFailed = "registry-failed",
        /// The response is not understood.
        AnswerInvalid = "answer-invalid",
        /// The image does not support this platform.
        PlatformMissing = "platform-missing",
        /// The content does not match its digest or size.
        DigestMismatch = "digest-mismatch",
        /// A manifest, configuration or layer is invalid.
        ContentInvalid = "content-invalid",
        /// The image exceeds a limit, or its kind is not supported.
        Unacceptable = "unacceptable",
        /// A signature is missing or invalid.
        SignatureRejected = "signature-rejected",
        /// The disk is full.
        DiskFull = "disk-full",
        /// The disk cannot be written or read.
        DiskFailed = "disk-failed",
        /// The image or the store is in use.
        InUse = "in-use",
        /// The runtime cannot be reached.
        RuntimeUnavailable = "runtime-unavailable",
        /// The time limit was exceeded.
        TimedOut = "timed-out",
        /// Cancelled by the caller.
        Cancelled = "cancelled",
        /// The store does not support the call.
        Unsupported = "unsupported",
        /// None of these.
        Other = "other",
    }
}

words! {
    /// The stage of an error.
    Stage {
        /// Parsing the name.
        Name = "name",
        /// Pull policy, verification or signature policy.
        Policy = "policy",
        /// Waiting in the pull queue.
        Queue = "queue",
        /// Reading pull secrets and docker configurations.
        Credentials = "credentials",
        /// Running a credential provider.
        CredentialProvider = "credential-provider",
        /// Reading or writing the pull records.
        Records = "records",
        /// Resolving the registry's host name.
        Dns = "dns",
        /// Connecting.
        Connect = "connect",
        /// The TLS handshake.
        Tls = "tls",
        /// Connecting through the proxy.
        Proxy = "proxy",
        /// The token service.
        Token = "token",
        /// Requesting the manifest.
        Manifest = "manifest",
        /// Fetching a blob.
        Blob = "blob",
        /// Verifying digests and sizes.
        Digest = "digest",
        /// Unpacking a layer.
        Unpack = "unpack",
        /// The disk.
        Disk = "disk",
        /// The image store.
        Store = "store",
        /// The container runtime, without a known place.
        Runtime = "runtime",
    }
}

/// The class and the stage of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The class.
    pub class: ErrorClass,
    /// The stage.
    pub hop: Stage,
    /// The time that the registry requests before a retry.
    pub retry_after: Option<Duration>,
}

impl Fault {
    /// A fault without a wait.
    pub fn new(class: ErrorClass, hop: Stage) -> Self {
        Self { class, hop, retry_after: None }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn words_are_kebab_case_and_each_stands_for_one() {
        let words: Vec<&str> = ErrorClass::ALL.iter().map(|class| class.word()).collect();
        let hops: Vec<&str> = Stage::ALL.iter().map(|hop| hop.word()).collect();
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
        for word in ErrorClass::ALL.iter().map(|class| class.word()).chain(Stage::ALL.iter().map(|hop| hop.word())) {
            assert!(page.lines().any(|line| line.starts_with(&format!("| `{word}` |"))), "no row for `{word}`");
        }
    }
}
