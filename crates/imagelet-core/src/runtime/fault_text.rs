//! Reads faults off kinds and texts: all that other runtimes tell of them.

use super::{ErrorClass, Fault, Hop, RuntimeErrorKind};

use ErrorClass as C;

/// What texts of containerd, CRI-O and our own server say, in the order in which it is looked for: what names a cause
/// stands before what names a consequence. Lower case. No hop: where it happened is told by [`PLACES`].
const TEXTS: [(&str, C, Option<Hop>); 69] = [
    // The runtime's own socket.
    ("dial unix", C::RuntimeUnavailable, Some(Hop::Runtime)),
    // The disk.
    ("no space left on device", C::DiskFull, Some(Hop::Disk)),
    ("disk quota exceeded", C::DiskFull, Some(Hop::Disk)),
    ("read-only file system", C::DiskFailed, Some(Hop::Disk)),
    ("input/output error", C::DiskFailed, Some(Hop::Disk)),
    // Policy.
    ("signaturevalidationfailed", C::SignatureRejected, Some(Hop::Policy)),
    ("signature was required", C::SignatureRejected, Some(Hop::Policy)),
    ("source image rejected", C::SignatureRejected, Some(Hop::Policy)),
    // The way to the registry.
    ("proxyconnect", C::ProxyFailed, Some(Hop::Proxy)),
    ("407 proxy authentication required", C::ProxyFailed, Some(Hop::Proxy)),
    ("no such host", C::HostNotFound, Some(Hop::Dns)),
    ("server misbehaving", C::HostNotFound, Some(Hop::Dns)),
    ("temporary failure in name resolution", C::HostNotFound, Some(Hop::Dns)),
    ("name or service not known", C::HostNotFound, Some(Hop::Dns)),
    ("failed to lookup address information", C::HostNotFound, Some(Hop::Dns)),
    ("x509:", C::CertificateInvalid, Some(Hop::Tls)),
    ("invalid peer certificate", C::CertificateInvalid, Some(Hop::Tls)),
    ("tls handshake timeout", C::TlsFailed, Some(Hop::Tls)),
    ("server gave http response to https client", C::TlsFailed, Some(Hop::Tls)),
    ("remote error: tls:", C::TlsFailed, Some(Hop::Tls)),
    ("tls: ", C::TlsFailed, Some(Hop::Tls)),
    ("connection refused", C::ConnectionRefused, Some(Hop::Connect)),
    ("no route to host", C::Unreachable, Some(Hop::Connect)),
    ("network is unreachable", C::Unreachable, Some(Hop::Connect)),
    ("host is unreachable", C::Unreachable, Some(Hop::Connect)),
    ("i/o timeout", C::Unreachable, Some(Hop::Connect)),
    ("client.timeout exceeded", C::Unreachable, Some(Hop::Connect)),
    ("connection reset by peer", C::ConnectionLost, None),
    ("broken pipe", C::ConnectionLost, None),
    // What the registry says. A rate limit may come with any status.
    ("toomanyrequests", C::RateLimited, None),
    ("429 too many requests", C::RateLimited, None),
    ("answered 429", C::RateLimited, None),
    ("no match for platform", C::PlatformMissing, Some(Hop::Manifest)),
    ("no image found in image index", C::PlatformMissing, Some(Hop::Manifest)),
    ("no image found in manifest list", C::PlatformMissing, Some(Hop::Manifest)),
    ("unexpected commit digest", C::DigestMismatch, Some(Hop::Digest)),
    ("unexpected commit size", C::DigestMismatch, Some(Hop::Digest)),
    ("failed size validation", C::DigestMismatch, Some(Hop::Digest)),
    ("digest did not match", C::DigestMismatch, Some(Hop::Digest)),
    ("401 unauthorized", C::Unauthorized, None),
    ("unauthorized: ", C::Unauthorized, None),
    ("authentication required", C::Unauthorized, None),
    ("no basic auth credentials", C::Unauthorized, None),
    ("insufficient_scope", C::Unauthorized, None),
    ("pull access denied", C::Unauthorized, None),
    ("invalid username/password", C::Unauthorized, None),
    ("does not accept the credential", C::Unauthorized, None),
    ("without a credential", C::Unauthorized, None),
    ("403 forbidden", C::Forbidden, None),
    ("denied: ", C::Forbidden, None),
    ("500 internal server error", C::RegistryFailed, None),
    ("502 bad gateway", C::RegistryFailed, None),
    ("503 service unavailable", C::RegistryFailed, None),
    ("504 gateway timeout", C::RegistryFailed, None),
    ("answered 5", C::RegistryFailed, None),
    ("blob unknown", C::BlobUnknown, Some(Hop::Blob)),
    ("manifest unknown", C::ImageUnknown, Some(Hop::Manifest)),
    ("name unknown", C::ImageUnknown, Some(Hop::Manifest)),
    ("was not found in registry", C::ImageUnknown, None),
    ("404 not found", C::ImageUnknown, None),
    (": not found", C::ImageUnknown, None),
    // What came.
    ("failed to extract layer", C::ContentInvalid, Some(Hop::Unpack)),
    ("applying layer", C::ContentInvalid, Some(Hop::Unpack)),
    ("unexpected eof", C::ConnectionLost, None),
    ("pull qps exceeded", C::RateExceeded, Some(Hop::Queue)),
    ("invalid reference format", C::NameInvalid, Some(Hop::Name)),
    ("failed to parse image reference", C::NameInvalid, Some(Hop::Name)),
    ("context deadline exceeded", C::TimedOut, None),
    ("context canceled", C::Cancelled, None),
];

/// What tells a hop, where the fault itself does not.
const PLACES: [(&str, Hop); 12] = [
    ("anonymous token", Hop::Token),
    ("oauth token", Hop::Token),
    ("failed to authorize", Hop::Token),
    ("token service", Hop::Token),
    ("bearer token", Hop::Token),
    ("httpreadseeker", Hop::Blob),
    ("/blobs/", Hop::Blob),
    ("failed to copy", Hop::Blob),
    ("reading blob", Hop::Blob),
    ("writing blob", Hop::Blob),
    ("copying system image", Hop::Blob),
    ("no usable manifest", Hop::Manifest),
];

/// The fault behind a runtime's refusal, by its kind, which a code of its wire made, and its text.
pub(super) fn of_text(kind: RuntimeErrorKind, text: &str) -> Fault {
    let text = text.to_ascii_lowercase();
    let told = |part: &str| text.contains(part);
    let place = PLACES.iter().find(|(part, _)| told(part)).map(|(_, hop)| *hop);
    if kind == RuntimeErrorKind::Unavailable {
        let class = if told("read-only") { C::DiskFailed } else { C::RuntimeUnavailable };
        return Fault::new(class, if class == C::DiskFailed { Hop::Disk } else { Hop::Runtime });
    }
    // A resolver that does not answer is no registry that does not.
    if told("lookup ") && told("i/o timeout") && !told("proxyconnect") {
        return Fault::new(C::HostNotFound, Hop::Dns);
    }
    // What a layer breaks off with when it is unpacked is its own fault; the disk's was looked for before.
    let told_text = TEXTS.iter().find(|(part, ..)| told(part));
    if let Some((_, class, hop)) = told_text {
        let class = match (class, place) {
            (C::ImageUnknown, Some(Hop::Blob)) => C::BlobUnknown,
            (class, _) => *class,
        };
        return Fault::new(class, hop.or(place).unwrap_or(Hop::Manifest));
    }
    let (class, hop) = of_kind(kind);
    Fault::new(class, place.unwrap_or(hop))
}

fn of_kind(kind: RuntimeErrorKind) -> (ErrorClass, Hop) {
    match kind {
        RuntimeErrorKind::InvalidArgument => (C::NameInvalid, Hop::Name),
        RuntimeErrorKind::NotFound => (C::ImageUnknown, Hop::Manifest),
        RuntimeErrorKind::Denied => (C::Unauthorized, Hop::Manifest),
        RuntimeErrorKind::RegistryUnavailable => (C::Unreachable, Hop::Connect),
        RuntimeErrorKind::SignatureInvalid => (C::SignatureRejected, Hop::Policy),
        RuntimeErrorKind::Corrupt => (C::ContentInvalid, Hop::Unpack),
        RuntimeErrorKind::Unacceptable => (C::Unacceptable, Hop::Manifest),
        RuntimeErrorKind::InUse => (C::InUse, Hop::Store),
        RuntimeErrorKind::DiskFull => (C::DiskFull, Hop::Disk),
        RuntimeErrorKind::Unavailable => (C::RuntimeUnavailable, Hop::Runtime),
        RuntimeErrorKind::Unsupported => (C::Unsupported, Hop::Runtime),
        RuntimeErrorKind::TimedOut => (C::TimedOut, Hop::Runtime),
        RuntimeErrorKind::Cancelled => (C::Cancelled, Hop::Runtime),
        RuntimeErrorKind::Defect => (C::Other, Hop::Store),
        RuntimeErrorKind::Other => (C::Other, Hop::Runtime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts as containerd and CRI-O send them, some shortened in the middle.
    #[test]
    fn texts_of_containerd_and_crio_are_told_apart() {
        let resolve = "failed to pull and unpack image \"r.io/a:v1\": failed to resolve reference \"r.io/a:v1\": ";
        let request = format!("{resolve}failed to do request: Head \"https://r.io/v2/a/manifests/v1\": ");
        let crio = "initializing source docker://r.io/a:v1: ";
        let ping = format!("{crio}pinging container registry r.io: Get \"https://r.io/v2/\": ");
        for (before, text, class, hop) in [
            (request.as_str(), "dial tcp: lookup r.io on 10.0.0.10:53: no such host", C::HostNotFound, Hop::Dns),
            (&request, "dial tcp: lookup r.io on 10.0.0.10:53: server misbehaving", C::HostNotFound, Hop::Dns),
            (
                &request,
                "dial tcp: lookup r.io: read udp 10.0.0.1:3->10.0.0.10:53: i/o timeout",
                C::HostNotFound,
                Hop::Dns,
            ),
            (&request, "dial tcp 10.0.0.1:443: connect: connection refused", C::ConnectionRefused, Hop::Connect),
            (&request, "dial tcp 10.0.0.1:443: i/o timeout", C::Unreachable, Hop::Connect),
            (&request, "dial tcp 10.0.0.1:443: connect: no route to host", C::Unreachable, Hop::Connect),
            (&request, "dial tcp 10.0.0.1:443: connect: network is unreachable", C::Unreachable, Hop::Connect),
            (&request, "net/http: TLS handshake timeout", C::TlsFailed, Hop::Tls),
            (&request, "remote error: tls: handshake failure", C::TlsFailed, Hop::Tls),
            (&request, "http: server gave HTTP response to HTTPS client", C::TlsFailed, Hop::Tls),
            (
                &request,
                "tls: failed to verify certificate: x509: certificate signed by unknown authority",
                C::CertificateInvalid,
                Hop::Tls,
            ),
            (
                &request,
                "proxyconnect tcp: dial tcp 10.0.0.9:3128: connect: connection refused",
                C::ProxyFailed,
                Hop::Proxy,
            ),
            (&request, "proxyconnect tcp: dial tcp: lookup p on 10.0.0.10:53: i/o timeout", C::ProxyFailed, Hop::Proxy),
            (
                resolve,
                "pull access denied, repository does not exist or may require authorization: server message: \
                 insufficient_scope: authorization failed",
                C::Unauthorized,
                Hop::Manifest,
            ),
            (
                resolve,
                "failed to authorize: failed to fetch anonymous token: unexpected status from GET request to \
                 https://auth.r.io/token?scope=repository%3Aa%3Apull: 401 Unauthorized",
                C::Unauthorized,
                Hop::Token,
            ),
            (
                resolve,
                "failed to authorize: failed to fetch oauth token: unexpected status from POST request to \
                 https://auth.r.io/token: 503 Service Unavailable",
                C::RegistryFailed,
                Hop::Token,
            ),
            (
                resolve,
                "unexpected status from HEAD request to https://r.io/v2/a/manifests/v1: 403 Forbidden",
                C::Forbidden,
                Hop::Manifest,
            ),
            (
                resolve,
                "unexpected status from HEAD request to https://r.io/v2/a/manifests/v1: 500 Internal Server Error",
                C::RegistryFailed,
                Hop::Manifest,
            ),
            (
                "failed to pull and unpack image \"r.io/a:v1\": failed to copy: httpReadSeeker: failed open: ",
                "unexpected status code https://r.io/v2/a/manifests/sha256:1: 429 Too Many Requests - Server message: \
                 toomanyrequests: You have reached your unauthenticated pull rate limit.",
                C::RateLimited,
                Hop::Blob,
            ),
            (resolve, "r.io/a:v1: not found", C::ImageUnknown, Hop::Manifest),
            (
                "failed to pull and unpack image \"r.io/a:v1\": failed to copy: httpReadSeeker: failed open: ",
                "content at https://r.io/v2/a/blobs/sha256:1 not found: not found",
                C::BlobUnknown,
                Hop::Blob,
            ),
            (
                "failed to pull and unpack image \"r.io/a:v1\": ",
                "no match for platform in manifest: not found",
                C::PlatformMissing,
                Hop::Manifest,
            ),
            (
                "failed to pull and unpack image \"r.io/a:v1\": failed to copy: ",
                "read tcp 10.0.0.2:4->10.0.0.1:443: read: connection reset by peer",
                C::ConnectionLost,
                Hop::Blob,
            ),
            (
                "failed to pull and unpack image \"r.io/a:v1\": failed commit on ref \"layer-sha256:1\": ",
                "unexpected commit digest sha256:2, expected sha256:1: failed precondition",
                C::DigestMismatch,
                Hop::Digest,
            ),
            (
                "failed to pull and unpack image \"r.io/a:v1\": failed to extract layer sha256:1: mount callback failed: ",
                "write /var/lib/containerd/tmpmounts/c/x: no space left on device: unknown",
                C::DiskFull,
                Hop::Disk,
            ),
            (
                "failed to pull and unpack image \"r.io/a:v1\": ",
                "failed to extract layer sha256:1: archive/tar: invalid tar header: unknown",
                C::ContentInvalid,
                Hop::Unpack,
            ),
            (
                "connection error: desc = \"transport: Error while dialing: ",
                "dial unix /run/containerd/containerd.sock: connect: no such file or directory\"",
                C::RuntimeUnavailable,
                Hop::Runtime,
            ),
            (&ping, "dial tcp: lookup r.io: no such host", C::HostNotFound, Hop::Dns),
            (&ping, "dial tcp 10.0.0.1:443: connect: connection refused", C::ConnectionRefused, Hop::Connect),
            (crio, "reading manifest v1 in r.io/a: manifest unknown", C::ImageUnknown, Hop::Manifest),
            (
                crio,
                "reading manifest v1 in r.io/a: unauthorized: authentication required",
                C::Unauthorized,
                Hop::Manifest,
            ),
            (
                crio,
                "reading manifest v1 in r.io/a: errors:\ndenied: requested access to the resource is denied\nunauthorized: authentication required",
                C::Unauthorized,
                Hop::Manifest,
            ),
            (crio, "reading manifest v1 in r.io/a: denied: no", C::Forbidden, Hop::Manifest),
            (
                crio,
                "Requesting bearer token: invalid status code from registry 503 (Service Unavailable)",
                C::Other,
                Hop::Token,
            ),
            (
                "",
                "choosing an image from manifest list docker://r.io/a:v1: no image found in image index for architecture \"arm64\"",
                C::PlatformMissing,
                Hop::Manifest,
            ),
            (
                "copying system image from manifest list: ",
                "writing blob: storing blob to file \"/var/tmp/x\": write /var/tmp/x: no space left on device",
                C::DiskFull,
                Hop::Disk,
            ),
            (
                "copying system image from manifest list: ",
                "reading blob sha256:1: Digest did not match, expected sha256:1, got sha256:2",
                C::DigestMismatch,
                Hop::Digest,
            ),
            (
                "",
                "SignatureValidationFailed: Source image rejected: A signature was required, but no signature exists",
                C::SignatureRejected,
                Hop::Policy,
            ),
            ("", "context deadline exceeded", C::TimedOut, Hop::Manifest),
            ("", "something else", C::Other, Hop::Runtime),
        ] {
            let text = format!("{before}{text}");
            assert_eq!(of_text(RuntimeErrorKind::Other, &text), Fault::new(class, hop), "{text}");
        }
    }

    #[test]
    fn a_code_alone_says_as_much_as_it_can() {
        for (kind, class, hop) in [
            (RuntimeErrorKind::NotFound, C::ImageUnknown, Hop::Manifest),
            (RuntimeErrorKind::Denied, C::Unauthorized, Hop::Manifest),
            (RuntimeErrorKind::DiskFull, C::DiskFull, Hop::Disk),
            (RuntimeErrorKind::Unavailable, C::RuntimeUnavailable, Hop::Runtime),
            (RuntimeErrorKind::TimedOut, C::TimedOut, Hop::Runtime),
            (RuntimeErrorKind::Other, C::Other, Hop::Runtime),
        ] {
            assert_eq!(of_text(kind, "it did not work"), Fault::new(class, hop), "{kind:?}");
        }
    }

    #[test]
    fn every_text_can_be_found_and_none_hides_behind_another() {
        for (index, (text, ..)) in TEXTS.iter().enumerate() {
            assert_eq!(*text, text.to_ascii_lowercase());
            let first = TEXTS.iter().position(|(other, ..)| text.contains(other)).expect("itself at least");
            assert_eq!(first, index, "`{text}` is never reached");
        }
    }
}
