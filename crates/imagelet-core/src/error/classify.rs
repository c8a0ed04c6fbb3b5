//! Classifies errors by kind and text, because other runtimes report nothing else.

use std::{error::Error, io};

use super::{
    error_class::{ErrorClass, Fault, Party, Stage},
    runtime_error::{RuntimeError, RuntimeErrorKind, causes},
};

use ErrorClass as C;
use RuntimeErrorKind as K;

/// Text patterns of containerd, CRI-O and our own server, in lower case. The first match counts, so a cause precedes
/// its consequences. Stage `None`: [`PLACES`] decides the stage. A kind other than [`K::Other`] replaces a less
/// specific gRPC code. The patterns of such a kind have a space or a colon, because a text may contain an image name.
const TEXTS: [(C, Option<Stage>, K, &[&str]); 45] = [
    // The runtime's socket cannot be opened, so no registry was contacted.
    (C::RuntimeUnavailable, Some(Stage::Runtime), K::Unavailable, &["dial unix"]),
    (C::DiskFull, Some(Stage::Disk), K::DiskFull, &["no space left on device", "disk quota exceeded"]),
    (C::DiskFailed, Some(Stage::Disk), K::Other, &["read-only file system", "input/output error"]),
    (C::SignatureRejected, Some(Stage::Policy), K::Other, &["signaturevalidationfailed", "signature was required"]),
    (C::SignatureRejected, Some(Stage::Policy), K::Other, &["source image rejected"]),
    (C::ProxyFailed, Some(Stage::Proxy), K::RegistryUnavailable, &["proxyconnect tcp"]),
    (C::ProxyFailed, Some(Stage::Proxy), K::Other, &["407 proxy authentication required"]),
    (C::HostNotFound, Some(Stage::Dns), K::RegistryUnavailable, &["no such host", "server misbehaving"]),
    (C::HostNotFound, Some(Stage::Dns), K::RegistryUnavailable, &["temporary failure in name resolution"]),
    (C::HostNotFound, Some(Stage::Dns), K::RegistryUnavailable, &["name or service not known"]),
    (C::HostNotFound, Some(Stage::Dns), K::RegistryUnavailable, &["failed to lookup address information"]),
    (C::CertificateInvalid, Some(Stage::Tls), K::Other, &["x509:", "invalid peer certificate"]),
    (C::TlsFailed, Some(Stage::Tls), K::RegistryUnavailable, &["tls handshake timeout"]),
    (C::TlsFailed, Some(Stage::Tls), K::Other, &["server gave http response to https client", "tls: "]),
    (C::ConnectionRefused, Some(Stage::Connect), K::RegistryUnavailable, &["connection refused"]),
    (C::Unreachable, Some(Stage::Connect), K::RegistryUnavailable, &["no route to host", "network is unreachable"]),
    (C::Unreachable, Some(Stage::Connect), K::RegistryUnavailable, &["host is unreachable", "i/o timeout"]),
    (C::Unreachable, Some(Stage::Connect), K::RegistryUnavailable, &["client.timeout exceeded"]),
    (C::ConnectionLost, None, K::RegistryUnavailable, &["connection reset by peer"]),
    // The kind is open, because a broken pipe to a local process has the same text.
    (C::ConnectionLost, None, K::Other, &["broken pipe"]),
    // The kind is open, because a registry may send a rate limit with any status code.
    (C::RateLimited, None, K::Other, &["toomanyrequests", "429 too many requests", "answered 429"]),
    (C::PlatformMissing, Some(Stage::Manifest), K::Unacceptable, &["no match for platform"]),
    (C::PlatformMissing, Some(Stage::Manifest), K::Unacceptable, &["no image found in image index"]),
    (C::PlatformMissing, Some(Stage::Manifest), K::Unacceptable, &["no image found in manifest list"]),
    (C::DigestMismatch, Some(Stage::Digest), K::Corrupt, &["unexpected commit digest", "unexpected commit size"]),
    (C::DigestMismatch, Some(Stage::Digest), K::Corrupt, &["failed size validation", "digest did not match"]),
    (C::Unauthorized, None, K::Denied, &["401 unauthorized", "unauthorized: ", "authentication required"]),
    (C::Unauthorized, None, K::Denied, &["no basic auth credentials", "insufficient_scope:", "pull access denied"]),
    (C::Unauthorized, None, K::Denied, &["authorization failed", "invalid username/password", "without a credential"]),
    (C::Unauthorized, None, K::Denied, &["does not accept the credential"]),
    (C::Forbidden, None, K::Denied, &["403 forbidden"]),
    // The kind is open, because denied access to a local file has the same text.
    (C::Forbidden, None, K::Other, &["denied: "]),
    (C::RegistryFailed, None, K::Other, &["500 internal server error", "answered 5"]),
    (C::RegistryFailed, None, K::RegistryUnavailable, &["502 bad gateway", "503 service unavailable"]),
    (C::RegistryFailed, None, K::RegistryUnavailable, &["504 gateway timeout"]),
    (C::BlobUnknown, Some(Stage::Blob), K::NotFound, &["blob unknown"]),
    (C::ImageUnknown, Some(Stage::Manifest), K::NotFound, &["manifest unknown", "name unknown"]),
    (C::ImageUnknown, None, K::NotFound, &["was not found in registry", "404 not found", ": not found"]),
    (C::ContentInvalid, Some(Stage::Unpack), K::Other, &["failed to extract layer", "applying layer"]),
    (C::ConnectionLost, None, K::Other, &["unexpected eof"]),
    (C::RateExceeded, Some(Stage::Queue), K::Other, &["pull qps exceeded"]),
    (C::NameInvalid, Some(Stage::Name), K::InvalidArgument, &["invalid reference format"]),
    (C::NameInvalid, Some(Stage::Name), K::InvalidArgument, &["failed to parse image reference"]),
    (C::TimedOut, None, K::Other, &["context deadline exceeded"]),
    (C::Cancelled, None, K::Other, &["context canceled"]),
];

/// The kind of a failed pull, by a text that is more specific than the gRPC code. `None`: the text implies no kind.
pub fn kind_of_pull_text(text: &str) -> Option<RuntimeErrorKind> {
    let text = text.to_ascii_lowercase();
    let mut rows = TEXTS.iter().filter(|(_, _, kind, _)| *kind != K::Other);
    let found = rows.find(|(.., parts)| parts.iter().any(|part| text.contains(part)));
    found.map(|(_, _, kind, _)| *kind)
}

/// Text patterns for the stage, if the class does not imply the stage.
const PLACES: [(Stage, &[&str]); 3] = [
    (Stage::Token, &["anonymous token", "oauth token", "failed to authorize", "token service", "bearer token"]),
    (
        Stage::Blob,
        &["httpreadseeker", "/blobs/", "failed to copy", "reading blob", "writing blob", "copying system image"],
    ),
    (Stage::Manifest, &["no usable manifest"]),
];

pub(super) fn from_text(kind: RuntimeErrorKind, text: &str) -> Fault {
    let text = text.to_ascii_lowercase();
    let has = |part: &str| text.contains(part);
    let has_any = |parts: &[&str]| parts.iter().any(|part| has(part));
    let place = PLACES.iter().find(|(_, parts)| has_any(parts)).map(|(stage, _)| *stage);
    if kind == RuntimeErrorKind::Unavailable {
        let is_disk = has("read-only");
        let (class, stage) =
            if is_disk { (C::DiskFailed, Stage::Disk) } else { (C::RuntimeUnavailable, Stage::Runtime) };
        return Fault::new(class, stage);
    }
    // The DNS resolver did not answer, so the registry was not contacted.
    if has("lookup ") && has("i/o timeout") && !has("proxyconnect") {
        return Fault::new(C::HostNotFound, Stage::Dns);
    }
    if let Some((class, stage, ..)) = TEXTS.iter().find(|(.., parts)| has_any(parts)) {
        let class = match (class, place) {
            (C::ImageUnknown, Some(Stage::Blob)) => C::BlobUnknown,
            (class, _) => *class,
        };
        let fault = Fault::new(class, stage.or(place).unwrap_or(Stage::Manifest));
        return Fault { party: party(fault.stage, place), ..fault };
    }
    let (class, stage) = of_kind(kind);
    Fault::new(class, place.unwrap_or(stage))
}

/// The party that was not reached. For a blob it is the target of a redirect: the registry has served the manifest.
fn party(stage: Stage, place: Option<Stage>) -> Party {
    match (stage, place) {
        (Stage::Dns | Stage::Connect | Stage::Tls, Some(Stage::Blob)) => Party::RedirectTarget,
        (Stage::Dns | Stage::Connect | Stage::Tls, Some(Stage::Token)) => Party::TokenService,
        _ => Party::Registry,
    }
}

fn of_kind(kind: RuntimeErrorKind) -> (ErrorClass, Stage) {
    match kind {
        RuntimeErrorKind::InvalidArgument => (C::NameInvalid, Stage::Name),
        RuntimeErrorKind::NotFound => (C::ImageUnknown, Stage::Manifest),
        RuntimeErrorKind::Denied => (C::Unauthorized, Stage::Manifest),
        RuntimeErrorKind::RegistryUnavailable => (C::Unreachable, Stage::Connect),
        RuntimeErrorKind::SignatureInvalid => (C::SignatureRejected, Stage::Policy),
        RuntimeErrorKind::Corrupt => (C::ContentInvalid, Stage::Unpack),
        RuntimeErrorKind::Unacceptable => (C::Unacceptable, Stage::Manifest),
        RuntimeErrorKind::InUse => (C::InUse, Stage::Store),
        RuntimeErrorKind::DiskFull => (C::DiskFull, Stage::Disk),
        RuntimeErrorKind::Unavailable => (C::RuntimeUnavailable, Stage::Runtime),
        RuntimeErrorKind::Unsupported => (C::Unsupported, Stage::Runtime),
        RuntimeErrorKind::TimedOut => (C::TimedOut, Stage::Runtime),
        RuntimeErrorKind::Cancelled => (C::Cancelled, Stage::Runtime),
        RuntimeErrorKind::Defect | RuntimeErrorKind::Remains => (C::Other, Stage::Store),
        RuntimeErrorKind::Other => (C::Other, Stage::Runtime),
    }
}

impl RuntimeError {
    /// The fault that the error or a cause recorded; else by a disk error among the causes; else by kind and text.
    pub fn fault(&self) -> Fault {
        let recorded = |error: &(dyn Error + 'static)| error.downcast_ref::<Self>()?.fault.as_deref().cloned();
        let of_disk = |error: &(dyn Error + 'static)| from_disk(self.kind(), error.downcast_ref()?);
        let known = causes(self).find_map(recorded).or_else(|| causes(self).find_map(of_disk));
        known.unwrap_or_else(|| from_text(self.kind(), &self.chain()))
    }
}

fn from_disk(kind: RuntimeErrorKind, error: &io::Error) -> Option<Fault> {
    if kind == RuntimeErrorKind::RegistryUnavailable {
        return None;
    }
    let class = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorClass::DiskFull,
        io::ErrorKind::ReadOnlyFilesystem => ErrorClass::DiskFailed,
        _ if error.raw_os_error() == Some(EIO) => ErrorClass::DiskFailed,
        _ => return None,
    };
    Some(Fault::new(class, Stage::Disk))
}

const EIO: i32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_containerd_and_crio_are_told_apart() {
        let resolve = "failed to pull and unpack image \"r.io/a:v1\": failed to resolve reference \"r.io/a:v1\": ";
        let request = format!("{resolve}failed to do request: Head \"https://r.io/v2/a/manifests/v1\": ");
        let crio = "initializing source docker://r.io/a:v1: ";
        let ping = format!("{crio}pinging container registry r.io: Get \"https://r.io/v2/\": ");
        for (before, text, class, stage) in [
            (request.as_str(), "dial tcp: lookup r.io on 10.0.0.10:53: no such host", C::HostNotFound, Stage::Dns),
            (&request, "dial tcp: lookup r.io on 10.0.0.10:53: server misbehaving", C::HostNotFound, Stage::Dns),
            (
                &request,
                "dial tcp: lookup r.io: read udp 10.0.0.1:3->10.0.0.10:53: i/o timeout",
                C::HostNotFound,
                Stage::Dns,
            ),
            (&request, "dial tcp 10.0.0.1:443: connect: connection refused", C::ConnectionRefused, Stage::Connect),
            (&request, "dial tcp 10.0.0.1:443: i/o timeout", C::Unreachable, Stage::Connect),
            (&request, "dial tcp 10.0.0.1:443: connect: no route to host", C::Unreachable, Stage::Connect),
            (&request, "dial tcp 10.0.0.1:443: connect: network is unreachable", C::Unreachable, Stage::Connect),
            (&request, "net/http: TLS handshake timeout", C::TlsFailed, Stage::Tls),
            (&request, "remote error: tls: handshake failure", C::TlsFailed, Stage::Tls),
            (&request, "http: server gave HTTP response to HTTPS client", C::TlsFailed, Stage::Tls),
            (
                &request,
                "tls: failed to verify certificate: x509: certificate signed by unknown authority",
                C::CertificateInvalid,
                Stage::Tls,
            ),
            (
                &request,
                "proxyconnect tcp: dial tcp 10.0.0.9:3128: connect: connection refused",
                C::ProxyFailed,
                Stage::Proxy,
            ),
            (
                &request,
                "proxyconnect tcp: dial tcp: lookup p on 10.0.0.10:53: i/o timeout",
                C::ProxyFailed,
                Stage::Proxy,
            ),
            (
                resolve,
                "pull access denied, repository does not exist or may require authorization: server message: \
                 insufficient_scope: authorization failed",
                C::Unauthorized,
                Stage::Manifest,
            ),
            (
                resolve,
                "failed to authorize: failed to fetch anonymous token: unexpected status from GET request to \
                 https://auth.r.io/token?scope=repository%3Aa%3Apull: 401 Unauthorized",
                C::Unauthorized,
                Stage::Token,
            ),
            (
                resolve,
                "failed to authorize: failed to fetch oauth token: unexpected status from POST request to \
                 https://auth.r.io/token: 503 Service Unavailable",
                C::RegistryFailed,
                Stage::Token,
            ),
            (
                resolve,
                "unexpected status from HEAD request to https://r.io/v2/a/manifests/v1: 403 Forbidden",
                C::Forbidden,
                Stage::Manifest,
            ),
            (
                resolve,
                "unexpected status from HEAD request to https://r.io/v2/a/manifests/v1: 500 Internal Server Error",
                C::RegistryFailed,
                Stage::Manifest,
            ),
            (
                "failed to pull and unpack image \"r.io/a:v1\": failed to copy: httpReadSeeker: failed open: ",
                "unexpected status code https://r.io/v2/a/manifests/sha256:1: 429 Too Many Requests - Server message: \
                 toomanyrequests: You have reached your unauthenticated pull rate limit.",
                C::RateLimited,
                Stage::Blob,
            ),
            (resolve, "r.io/a:v1: not found", C::ImageUnknown, Stage::Manifest),
            (
                "failed to pull and unpack image \"r.io/a:v1\": failed to copy: httpReadSeeker: failed open: ",
                "content at https://r.io/v2/a/blobs/sha256:1 not found: not found",
                C::BlobUnknown,
                Stage::Blob,
            ),
            (
                "failed to pull and unpack image \"r.io/a:v1\": ",
                "no match for platform in manifest: not found",
                C::PlatformMissing,
                Stage::Manifest,
            ),
            (
                "failed to pull and unpack image \"r.io/a:v1\": failed to copy: ",
                "read tcp 10.0.0.2:4->10.0.0.1:443: read: connection reset by peer",
                C::ConnectionLost,
                Stage::Blob,
            ),
            (
                "failed to pull and unpack image \"r.io/a:v1\": failed commit on ref \"layer-sha256:1\": ",
                "unexpected commit digest sha256:2, expected sha256:1: failed precondition",
                C::DigestMismatch,
                Stage::Digest,
            ),
            (
                "failed to pull and unpack image \"r.io/a:v1\": failed to extract layer sha256:1: mount callback failed: ",
                "write /var/lib/containerd/tmpmounts/c/x: no space left on device: unknown",
                C::DiskFull,
                Stage::Disk,
            ),
            (
                "failed to pull and unpack image \"r.io/a:v1\": ",
                "failed to extract layer sha256:1: archive/tar: invalid tar header: unknown",
                C::ContentInvalid,
                Stage::Unpack,
            ),
            (
                "connection error: desc = \"transport: Error while dialing: ",
                "dial unix /run/containerd/containerd.sock: connect: no such file or directory\"",
                C::RuntimeUnavailable,
                Stage::Runtime,
            ),
            (&ping, "dial tcp: lookup r.io: no such host", C::HostNotFound, Stage::Dns),
            (&ping, "dial tcp 10.0.0.1:443: connect: connection refused", C::ConnectionRefused, Stage::Connect),
            (crio, "reading manifest v1 in r.io/a: manifest unknown", C::ImageUnknown, Stage::Manifest),
            (
                crio,
                "reading manifest v1 in r.io/a: unauthorized: authentication required",
                C::Unauthorized,
                Stage::Manifest,
            ),
            (
                crio,
                "reading manifest v1 in r.io/a: errors:\ndenied: requested access to the resource is denied\nunauthorized: authentication required",
                C::Unauthorized,
                Stage::Manifest,
            ),
            (crio, "reading manifest v1 in r.io/a: denied: no", C::Forbidden, Stage::Manifest),
            (
                crio,
                "Requesting bearer token: invalid status code from registry 503 (Service Unavailable)",
                C::Other,
                Stage::Token,
            ),
            (
                "",
                "choosing an image from manifest list docker://r.io/a:v1: no image found in image index for architecture \"arm64\"",
                C::PlatformMissing,
                Stage::Manifest,
            ),
            (
                "copying system image from manifest list: ",
                "writing blob: storing blob to file \"/var/tmp/x\": write /var/tmp/x: no space left on device",
                C::DiskFull,
                Stage::Disk,
            ),
            (
                "copying system image from manifest list: ",
                "reading blob sha256:1: Digest did not match, expected sha256:1, got sha256:2",
                C::DigestMismatch,
                Stage::Digest,
            ),
            (
                "",
                "SignatureValidationFailed: Source image rejected: A signature was required, but no signature exists",
                C::SignatureRejected,
                Stage::Policy,
            ),
            ("", "context deadline exceeded", C::TimedOut, Stage::Manifest),
            ("", "something else", C::Other, Stage::Runtime),
        ] {
            let text = format!("{before}{text}");
            assert_eq!(from_text(RuntimeErrorKind::Other, &text), Fault::new(class, stage), "{text}");
        }
        for (text, kind) in [
            ("toomanyrequests: slow down: 503 Service Unavailable", Some(K::RegistryUnavailable)),
            ("failed to extract layer sha256:1: r.io/a:v1: not found", Some(K::NotFound)),
            (
                "denied: requested access to the resource is denied\nunauthorized: authentication required",
                Some(K::Denied),
            ),
            ("open /etc/x: permission denied: unknown", None),
            ("write |1: broken pipe", None),
            ("context deadline exceeded", None),
        ] {
            assert_eq!(kind_of_pull_text(text), kind, "{text}");
        }
    }

    #[test]
    fn a_host_that_is_not_reached_for_a_blob_or_a_token_may_be_another_than_the_registry() {
        let pull = "failed to pull and unpack image \"r.io/a:v1\": ";
        for (text, party) in [
            (
                "failed to copy: httpReadSeeker: failed open: failed to do request: Get \"http://127.0.0.1:1/x\": dial tcp 127.0.0.1:1: connect: connection refused",
                Party::RedirectTarget,
            ),
            (
                "failed to authorize: failed to fetch anonymous token: Get \"https://auth.r.io/token\": dial tcp 10.0.0.1:443: connect: connection refused",
                Party::TokenService,
            ),
            (
                "failed to do request: Head \"https://r.io/v2/a/manifests/v1\": dial tcp 10.0.0.1:443: connect: connection refused",
                Party::Registry,
            ),
        ] {
            let fault = from_text(RuntimeErrorKind::Other, &format!("{pull}{text}"));
            assert_eq!((fault.class, fault.party), (C::ConnectionRefused, party), "{text}");
        }
    }

    #[test]
    fn a_code_alone_says_as_much_as_it_can() {
        for (kind, class, stage) in [
            (RuntimeErrorKind::NotFound, C::ImageUnknown, Stage::Manifest),
            (RuntimeErrorKind::Denied, C::Unauthorized, Stage::Manifest),
            (RuntimeErrorKind::DiskFull, C::DiskFull, Stage::Disk),
            (RuntimeErrorKind::Unavailable, C::RuntimeUnavailable, Stage::Runtime),
            (RuntimeErrorKind::TimedOut, C::TimedOut, Stage::Runtime),
            (RuntimeErrorKind::Other, C::Other, Stage::Runtime),
        ] {
            assert_eq!(from_text(kind, "it did not work"), Fault::new(class, stage), "{kind:?}");
        }
    }

    #[test]
    fn every_text_can_be_found_and_none_hides_behind_another() {
        let texts: Vec<&str> = TEXTS.iter().flat_map(|(.., texts)| *texts).copied().collect();
        for (index, text) in texts.iter().enumerate() {
            assert_eq!(*text, text.to_ascii_lowercase());
            let first = texts.iter().position(|other| text.contains(other)).expect("itself at least");
            assert_eq!(first, index, "`{text}` is never reached");
        }
    }

    #[test]
    fn who_met_it_knows_best_however_deep() {
        let inner = RuntimeError::other("connection refused").with_fault(Fault::new(ErrorClass::TlsFailed, Stage::Tls));
        let middle = RuntimeError::new(RuntimeErrorKind::RegistryUnavailable, "no").caused_by(inner);
        let error = RuntimeError::other("could not pull").caused_by(middle);
        assert_eq!(error.fault(), Fault::new(ErrorClass::TlsFailed, Stage::Tls));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = RuntimeError::other("could not write").caused_by(full);
        assert_eq!(error.fault(), Fault::new(ErrorClass::DiskFull, Stage::Disk));
    }
}
