//! What went wrong and where on the way, in stable words for machines (`docs/errors.md`).

use std::{fmt, time::Duration};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$one:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name { $($(#[$one])* $variant,)* }

        impl $name {
            /// All of them, in the order of the documentation.
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
    /// What went wrong.
    ErrorClass {
        /// The name names no image.
        NameInvalid = "name-invalid",
        /// Absent or not this asker's, and not to be pulled.
        NotPresent = "not-present",
        /// It failed a short while ago and is left alone.
        HeldBack = "held-back",
        /// More pulls at once than are let begin or wait.
        RateExceeded = "rate-exceeded",
        /// A pull secret cannot be read.
        CredentialsUnreadable = "credentials-unreadable",
        /// The pull records cannot be read or written.
        RecordFailed = "record-failed",
        /// The registry's name has no address.
        HostNotFound = "host-not-found",
        /// Nobody listens there.
        ConnectionRefused = "connection-refused",
        /// No way there, or no answer in time.
        Unreachable = "unreachable",
        /// The connection broke.
        ConnectionLost = "connection-lost",
        /// Its certificate is not trusted.
        CertificateInvalid = "certificate-invalid",
        /// It speaks no TLS, or none that we do.
        TlsFailed = "tls-failed",
        /// The proxy did not let us through.
        ProxyFailed = "proxy-failed",
        /// It wants a credential, or another one.
        Unauthorized = "unauthorized",
        /// It knows the credential and refuses all the same.
        Forbidden = "forbidden",
        /// It has no such image.
        ImageUnknown = "image-unknown",
        /// It lacks a part of the image.
        BlobUnknown = "blob-unknown",
        /// It wants us to come back later.
        RateLimited = "rate-limited",
        /// It is broken.
        RegistryFailed = "registry-failed",
        /// It answered what nobody understands.
        AnswerInvalid = "answer-invalid",
        /// The image is not for this kind of machine.
        PlatformMissing = "platform-missing",
        /// What came is not what its digest or size promised.
        DigestMismatch = "digest-mismatch",
        /// A manifest, configuration or layer is broken.
        ContentInvalid = "content-invalid",
        /// It breaks a limit, or is of a kind that is not supported.
        Unacceptable = "unacceptable",
        /// A signature is missing or wrong.
        SignatureRejected = "signature-rejected",
        /// No room on the disk.
        DiskFull = "disk-full",
        /// The disk cannot be written or read.
        DiskFailed = "disk-failed",
        /// Something holds the image or the store.
        InUse = "in-use",
        /// The runtime cannot be reached.
        RuntimeUnavailable = "runtime-unavailable",
        /// It took longer than allowed.
        TimedOut = "timed-out",
        /// Given up by whoever asked.
        Cancelled = "cancelled",
        /// The store knows no such call.
        Unsupported = "unsupported",
        /// None of these.
        Other = "other",
    }
}

words! {
    /// Where on the way it went wrong.
    Stage {
        /// Reading the name.
        Name = "name",
        /// Pull policy, verification or signature policy.
        Policy = "policy",
        /// Waiting for a turn.
        Queue = "queue",
        /// Reading pull secrets and docker configurations.
        Credentials = "credentials",
        /// Asking a credential provider.
        CredentialProvider = "credential-provider",
        /// Reading or writing the pull records.
        Records = "records",
        /// Finding the registry's address.
        Dns = "dns",
        /// Connecting.
        Connect = "connect",
        /// The handshake.
        Tls = "tls",
        /// The proxy on the way.
        Proxy = "proxy",
        /// The token service.
        Token = "token",
        /// Asking for the manifest.
        Manifest = "manifest",
        /// Fetching a blob.
        Blob = "blob",
        /// Comparing digests and sizes.
        Digest = "digest",
        /// Unpacking a layer.
        Unpack = "unpack",
        /// The disk.
        Disk = "disk",
        /// The store of images.
        Store = "store",
        /// The container runtime, which does not say where.
        Runtime = "runtime",
    }
}

/// What went wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub class: ErrorClass,
    /// Where on the way.
    pub hop: Stage,
    /// How long the registry asks to be left alone, if it does.
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
