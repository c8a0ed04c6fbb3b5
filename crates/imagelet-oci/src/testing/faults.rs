//! The named faults, each with what a pull reports whose only host has it.

use imagelet_core::error::{ErrorClass as Class, Stage};

use super::fault::{Act, Certificate, Listens, Place, RegistryFault, Script, Times, always, once, times};
use Place::{Any, Config, Layer, Manifest, Storage, Token};

type Reported = (Class, Stage);

const SILENT: Reported = (Class::TimedOut, Stage::Manifest);
const LOST: Reported = (Class::ConnectionLost, Stage::Connect);
const INVALID_HEAD: Reported = (Class::AnswerInvalid, Stage::Manifest);
const BROKEN: Reported = (Class::RegistryFailed, Stage::Manifest);
const LIMITED: Reported = (Class::RateLimited, Stage::Manifest);
const REFUSED: Reported = (Class::Unauthorized, Stage::Manifest);
const NO_TOKEN: Reported = (Class::Unauthorized, Stage::Token);
const CUT: Reported = (Class::ConnectionLost, Stage::Blob);
const INVALID_BLOB: Reported = (Class::AnswerInvalid, Stage::Blob);
const UNTRUSTED: Reported = (Class::CertificateInvalid, Stage::Tls);
const NO_TLS: Reported = (Class::TlsFailed, Stage::Tls);
const OTHER_BYTES: Reported = (Class::DigestMismatch, Stage::Digest);

const IN_THE_MIDDLE: usize = 100_000;
const TO_STORAGE: Act = Act::Redirect("http://{storage}{path}?sig=signed-secret");
const BACK: Script = always(Layer, TO_STORAGE);
/// An alert: the version of the protocol is not supported.
const VERSION_ALERT: &[u8] = b"\x15\x03\x01\x00\x02\x02\x46";

/// One of a hundred requests is reset, another one gets `503`.
pub const ONE_PERCENT: RegistryFault = RegistryFault::heals(
    "one-percent",
    &[
        Script { place: Any, times: Times::Every(33, 100), act: Act::Reset },
        Script { place: Any, times: Times::Every(66, 100), act: Act::Status(503) },
    ],
);

const fn heals(name: &'static str, scripts: &'static [Script]) -> RegistryFault {
    RegistryFault::heals(name, scripts)
}

const fn fails(name: &'static str, reported: Reported, scripts: &'static [Script]) -> RegistryFault {
    RegistryFault::fails(name, reported, scripts)
}

/// All faults.
#[rustfmt::skip]
pub const FAULTS: &[RegistryFault] = &[
    // The connection and the head of the response.
    fails("dial-refused", (Class::ConnectionRefused, Stage::Connect), &[]).listening(Listens::Never),
    fails("dial-dropped", (Class::Unreachable, Stage::Connect), &[]).listening(Listens::Full),
    fails("accept-and-silence", SILENT, &[always(Any, Act::Silence)]),
    fails("accept-and-close", LOST, &[always(Any, Act::Close)]),
    fails("reset-before-head", LOST, &[always(Any, Act::Reset)]),
    heals("reset-before-head-once", &[once(Any, Act::Reset)]),
    fails("head-cut", LOST, &[always(Any, Act::Bytes(b"HTTP/1.1 200 OK\r\ncontent-le"))]),
    fails("head-stall", SILENT, &[always(Any, Act::HeadStall)]),
    fails("head-slowloris", SILENT, &[always(Any, Act::HeadTrickle)]),
    fails("head-garbage", INVALID_HEAD, &[always(Any, Act::Bytes(b"\x00\xff\xfe garbage \x01\r\n\r\n"))]),
    fails("head-20-mib", INVALID_HEAD, &[always(Any, Act::HeadHuge)]),
    fails("informational-flood", SILENT, &[always(Any, Act::Informational)]),
    // TLS.
    fails("tls-expired", UNTRUSTED, &[]).listening(Listens::Encrypted(Certificate::Expired)),
    fails("tls-wrong-name", UNTRUSTED, &[]).listening(Listens::Encrypted(Certificate::OtherName)),
    fails("tls-self-signed", UNTRUSTED, &[]).listening(Listens::Encrypted(Certificate::Unknown)),
    fails("tls-client-certificate-wanted", NO_TLS, &[]).listening(Listens::Encrypted(Certificate::ClientWanted)),
    fails("tls-closed-in-handshake", NO_TLS, &[]).listening(Listens::Handshake(Some(b""))),
    fails("tls-silence", (Class::TimedOut, Stage::Tls), &[]).listening(Listens::Handshake(None)),
    fails("tls-too-old", NO_TLS, &[]).listening(Listens::Handshake(Some(VERSION_ALERT))),
    fails("tls-plain-http", NO_TLS, &[])
        .listening(Listens::Handshake(Some(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n"))),
    // Statuses of the manifest.
    heals("manifest-500-once", &[once(Manifest, Act::Status(500))]),
    heals("manifest-502-once", &[once(Manifest, Act::Status(502))]),
    heals("manifest-503-twice", &[times(2, Manifest, Act::Status(503))]),
    heals("manifest-504-once", &[once(Manifest, Act::Status(504))]),
    fails("manifest-500", BROKEN, &[always(Manifest, Act::Status(500))]),
    fails("manifest-502", BROKEN, &[always(Manifest, Act::Status(502))]),
    fails("manifest-503", BROKEN, &[always(Manifest, Act::Status(503))]),
    fails("manifest-504", BROKEN, &[always(Manifest, Act::Status(504))]),
    heals("rate-limit-seconds", &[once(Manifest, Act::StatusWith(429, "retry-after", "1"))]),
    heals("rate-limit-date", &[once(Manifest, Act::StatusWith(429, "retry-after", "{now}"))]),
    heals("rate-limit-garbage", &[once(Manifest, Act::StatusWith(429, "retry-after", "soon"))]),
    heals("rate-limit-without-a-time", &[once(Manifest, Act::Status(429))]),
    fails("rate-limit-a-day", LIMITED, &[always(Manifest, Act::StatusWith(429, "retry-after", "86400"))]),
    fails("rate-limit-always", LIMITED, &[always(Manifest, Act::Status(429))]),
    heals("unavailable-seconds", &[once(Manifest, Act::StatusWith(503, "retry-after", "1"))]),
    fails("manifest-403", (Class::Forbidden, Stage::Manifest), &[always(Manifest, Act::Status(403))]),
    fails("manifest-404", (Class::ImageUnknown, Stage::Manifest), &[always(Manifest, Act::Status(404))]),
    // Authorization.
    fails("challenge-loop", REFUSED, &[always(Manifest, Act::Challenge)]),
    fails("challenge-malformed", REFUSED, &[always(Place::Challenge, bearer("Bearer realm=\"http://{self}/token"))]),
    fails("challenge-60-kb", REFUSED, &[always(Place::Challenge, bearer("Bearer realm=\"http://{self}/{long}\""))]),
    fails("challenge-unknown-scheme", REFUSED, &[always(Place::Challenge, bearer("Negotiate"))]),
    fails("challenge-absent", REFUSED, &[always(Place::Challenge, Act::Status(401))]),
    fails("realm-of-another-port", NO_TOKEN, &[always(Place::Challenge, bearer("Bearer realm=\"http://{storage}/token\""))]),
    fails("realm-of-another-host", NO_TOKEN, &[always(Place::Challenge, bearer("Bearer realm=\"http://auth.invalid/token\""))]),
    fails("realm-of-a-file", NO_TOKEN, &[always(Place::Challenge, bearer("Bearer realm=\"file:///etc/passwd\""))]),
    fails("realm-with-a-user", NO_TOKEN, &[always(Place::Challenge, bearer("Bearer realm=\"http://user:pw@{self}/token\""))]),
    fails("realm-absent", NO_TOKEN, &[always(Place::Challenge, bearer("Bearer service=\"x\""))]),
    heals("token-500-once", &[once(Token, Act::Status(500))]),
    fails("token-500", (Class::RegistryFailed, Stage::Token), &[always(Token, Act::Status(500))]),
    fails("token-401", NO_TOKEN, &[always(Token, Act::Status(401))]),
    fails("token-403", (Class::Forbidden, Stage::Token), &[always(Token, Act::Status(403))]),
    fails("token-rate-limit", (Class::RateLimited, Stage::Token), &[always(Token, Act::Status(429))]),
    heals("token-rate-limit-once", &[once(Token, Act::StatusWith(429, "retry-after", "1"))]),
    fails("token-silence", (Class::TimedOut, Stage::Token), &[always(Token, Act::Silence)]),
    fails("token-stall", (Class::TimedOut, Stage::Token), &[always(Token, Act::Stall(4))]),
    fails("token-64-mib", (Class::AnswerInvalid, Stage::Token), &[always(Token, Act::Spaces(64 << 20))]),
    fails("token-html", (Class::AnswerInvalid, Stage::Token), &[always(Token, Act::Page("text/html", b"<html>log in</html>"))]),
    fails("token-empty", (Class::AnswerInvalid, Stage::Token), &[always(Token, Act::Page("application/json", b"{}"))]),
    fails("token-redirect", (Class::AnswerInvalid, Stage::Token), &[always(Token, TO_STORAGE)]),
    heals("token-post-only", &[always(Token, Act::PostOnly)]),
    heals("token-expired-in-the-pull", &[once(Config, Act::ExpireTokens)]),
    // The body of the manifest.
    fails("manifest-html", (Class::AnswerInvalid, Stage::Manifest), &[always(Manifest, Act::Page("text/html", b"<html>log in</html>"))]),
    fails("manifest-empty", (Class::ContentInvalid, Stage::Manifest), &[always(Manifest, Act::Page("application/json", b""))]),
    fails("manifest-wrong-type", (Class::ContentInvalid, Stage::Manifest),
        &[always(Manifest, Act::Header("content-type", "application/vnd.oci.image.index.v1+json"))]),
    fails("manifest-wrong-digest", OTHER_BYTES, &[always(Manifest,
        Act::Header("docker-content-digest", "sha256:0000000000000000000000000000000000000000000000000000000000000000"))]),
    fails("manifest-too-large", (Class::Unacceptable, Stage::Manifest), &[always(Manifest, Act::Spaces(5 << 20))]),
    fails("manifest-truncated", OTHER_BYTES, &[always(Manifest, Act::Half)]),
    fails("manifest-204", (Class::AnswerInvalid, Stage::Manifest), &[always(Manifest, Act::NoContent)]),
    heals("manifest-cut-once", &[once(Manifest, Act::Cut(100))]),
    fails("manifest-cut", (Class::ConnectionLost, Stage::Manifest), &[always(Manifest, Act::Cut(100))]),
    fails("manifest-stall", SILENT, &[always(Manifest, Act::Stall(100))]),
    // Blobs.
    fails("config-404", (Class::BlobUnknown, Stage::Blob), &[always(Config, Act::Status(404))]),
    fails("config-wrong-bytes", OTHER_BYTES, &[always(Config, Act::WrongBytes)]),
    fails("layer-403", (Class::Forbidden, Stage::Blob), &[always(Layer, Act::Status(403))]),
    fails("layer-404", (Class::BlobUnknown, Stage::Blob), &[always(Layer, Act::Status(404))]),
    heals("layer-500-once", &[once(Layer, Act::Status(500))]),
    fails("layer-500", (Class::RegistryFailed, Stage::Blob), &[always(Layer, Act::Status(500))]),
    heals("layer-rate-limit-once", &[once(Layer, Act::StatusWith(429, "retry-after", "1"))]),
    fails("layer-silence", (Class::TimedOut, Stage::Blob), &[always(Layer, Act::Silence)]),
    heals("layer-cut-once", &[once(Layer, Act::Cut(IN_THE_MIDDLE))]),
    fails("layer-cut", CUT, &[always(Layer, Act::Cut(IN_THE_MIDDLE))]),
    heals("layer-reset-once", &[once(Layer, Act::ResetBody(IN_THE_MIDDLE))]),
    fails("layer-reset", CUT, &[always(Layer, Act::ResetBody(IN_THE_MIDDLE))]),
    heals("layer-stall-once", &[once(Layer, Act::Stall(IN_THE_MIDDLE))]),
    fails("layer-stall", (Class::TimedOut, Stage::Blob), &[always(Layer, Act::Stall(IN_THE_MIDDLE))]),
    heals("layer-trickle", &[always(Layer, Act::Trickle)]),
    fails("layer-length-too-short", INVALID_BLOB, &[always(Layer, Act::DeclareLess)]),
    fails("layer-length-too-long", INVALID_BLOB, &[always(Layer, Act::DeclareMore)]),
    heals("layer-chunked", &[always(Layer, Act::Chunked)]),
    heals("layer-without-a-length", &[always(Layer, Act::Unmeasured)]),
    fails("layer-204", INVALID_BLOB, &[always(Layer, Act::NoContent)]),
    fails("layer-206-unasked", INVALID_BLOB, &[always(Layer, Act::UnaskedRange)]),
    heals("layer-range-ignored", &[once(Layer, Act::Cut(IN_THE_MIDDLE)), always(Layer, Act::IgnoreRange)]),
    fails("layer-range-ignored-and-cut", CUT, &[always(Layer, Act::IgnoreRangeAndCut(IN_THE_MIDDLE))]),
    heals("layer-wrong-range", &[once(Layer, Act::Cut(IN_THE_MIDDLE)), always(Layer, Act::WrongRange)]),
    heals("layer-wrong-bytes-once", &[once(Layer, Act::WrongBytes)]),
    fails("layer-wrong-bytes", OTHER_BYTES, &[always(Layer, Act::WrongBytes)]),
    fails("layer-gzip-encoding", INVALID_BLOB, &[always(Layer, Act::Gzip)]),
    // Redirects of a blob.
    fails("redirect-loop", INVALID_BLOB, &[always(Layer, Act::Redirect("{path}"))]),
    // Twice: a range that is refused is requested again as a whole.
    fails("redirect-11-hops", INVALID_BLOB, &[times(22, Layer, Act::Redirect("{path}"))]),
    heals("redirect-10-hops", &[times(10, Layer, Act::Redirect("{path}"))]),
    heals("redirect-relative", &[once(Layer, Act::Redirect("./{name}"))]),
    fails("redirect-to-a-file", INVALID_BLOB, &[always(Layer, Act::Redirect("file:///etc/passwd"))]),
    fails("redirect-to-another-scheme", INVALID_BLOB, &[always(Layer, Act::Redirect("ftp://{storage}/blob"))]),
    fails("redirect-to-nowhere", INVALID_BLOB, &[always(Layer, Act::Status(307))]),
    heals("redirect-to-storage", &[BACK]),
    heals("redirect-with-a-user", &[always(Layer, Act::Redirect("http://user:pw@{storage}{path}"))]),
    heals("target-403-once", &[BACK, once(Storage, Act::Status(403))]),
    fails("target-403", (Class::Forbidden, Stage::Blob), &[BACK, always(Storage, Act::Status(403))]),
    fails("target-401", (Class::Unauthorized, Stage::Blob),
        &[BACK, always(Storage, Act::StatusWith(401, "www-authenticate", "Basic realm=\"storage\""))]),
    heals("target-503-once", &[BACK, once(Storage, Act::Status(503))]),
    fails("target-503", (Class::RegistryFailed, Stage::Blob), &[BACK, always(Storage, Act::Status(503))]),
    fails("target-dead", (Class::ConnectionRefused, Stage::Connect), &[always(Layer, Act::Redirect("http://127.0.0.1:1{path}"))]),
    fails("target-silence", (Class::TimedOut, Stage::Blob), &[BACK, always(Storage, Act::Silence)]),
    fails("target-wrong-bytes", OTHER_BYTES, &[BACK, always(Storage, Act::WrongBytes)]),
    fails("target-page", INVALID_BLOB, &[BACK, always(Storage, Act::Page("text/html", b"<html>log in</html>"))]),
];

const fn bearer(challenge: &'static str) -> Act {
    Act::StatusWith(401, "www-authenticate", challenge)
}
