//! Pulls from a registry that means well, and from ones that do not.

mod addresses;
mod certificates;
mod credential_table;
pub(crate) mod failover;
pub(crate) mod fake;
mod hosts_toml;
mod proxies;
mod registries_yaml;
mod silence;
mod strangers;
mod tokens;

use std::time::Duration;

use imagelet_core::{
    credentials::{Credential, CredentialKind, Secret},
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    image::{Digest, Platform, Reference},
    ports::Patience,
};

use self::fake::{FakeRegistry, Guard, OCI_INDEX, OCI_MANIFEST, RecordedRequest, Trick};
use super::{
    PullSession, Registry, RegistryConfig, RegistryTimeouts, Resolved, blob::BlobStream, connection::Urgency,
    next_host::Attempts, request::Query,
};
use crate::manifest::{CONFIG_BYTES_MAX, Descriptor};

/// `Basic` for `user` and `hunter2pass`.
const SHOWN: &str = "Basic dXNlcjpodW50ZXIycGFzcw==";

impl Registry {
    pub(crate) async fn resolve(
        &self,
        reference: &Reference,
        credentials: impl IntoIterator<Item = &Credential>,
        platform: &Platform,
    ) -> Result<Resolved, RuntimeError> {
        self.session(reference, credentials, Patience::FULL).await?.resolve(reference, platform).await
    }
}

impl PullSession {
    /// A session without hosts.
    pub(crate) fn nowhere(reference: Reference) -> Self {
        let registry = Registry::new(RegistryConfig::default());
        Self::new(registry.shared, reference, Vec::new(), &[], Patience::FULL)
    }

    /// Opens a blob at an offset.
    async fn open_blob(&self, descriptor: &Descriptor, offset: u64) -> Result<BlobStream, RuntimeError> {
        let mut stream = self.blob(descriptor).stream(offset..descriptor.size);
        stream.ready().await?;
        Ok(stream)
    }
}

fn registry() -> Registry {
    let config = RegistryConfig {
        timeouts: RegistryTimeouts {
            header: Duration::from_secs(10),
            progress: Duration::from_secs(1),
            retry_budget: Duration::from_secs(2),
            ..RegistryTimeouts::default()
        },
        ..RegistryConfig::default()
    };
    Registry::new(config)
}

fn platform() -> Platform {
    "linux/amd64".parse().unwrap()
}

fn credential(password: &str) -> Credential {
    Credential::basic("", "user", Secret::new(password))
}

fn bearer() -> Guard {
    Guard::Bearer { shown: Some(SHOWN.to_owned()), form: None, realm: None }
}

async fn pull(fake: &FakeRegistry, credential: Option<&Credential>) -> Result<Resolved, RuntimeError> {
    registry().resolve(&fake.reference("team/app:v1"), credential, &platform()).await
}

async fn read(resolved: &Resolved, descriptor: &Descriptor) -> Result<Vec<u8>, RuntimeError> {
    let mut stream = resolved.session.open_blob(descriptor, 0).await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn answer(status: u16, headers: &[(&'static str, &str)], body: &'static str) -> Trick {
    let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Trick::Answer(status, headers, body.into())
}

fn shown(seen: &[RecordedRequest]) -> Vec<Option<&str>> {
    seen.iter().map(|seen| seen.authorization.as_deref()).collect()
}

#[tokio::test]
async fn an_open_registry_hands_out_an_image() {
    let fake = FakeRegistry::start().await;
    let digest = fake.put_image("v1", &[b"layer one", b"layer two"]);
    let resolved = pull(&fake, None).await.unwrap();
    assert_eq!((&resolved.root.digest, resolved.root.media_type.as_str()), (&digest, OCI_MANIFEST));
    let [root, chosen] = [&resolved.root, &resolved.chosen]
        .map(|document| (&document.digest, &document.media_type, document.bytes.read().unwrap()));
    assert_eq!(root, chosen);
    let config = resolved.session.fetch_blob_bytes(&resolved.manifest.config, CONFIG_BYTES_MAX).await.unwrap();
    assert!(config.starts_with(b"{"));
    assert_eq!(read(&resolved, &resolved.manifest.layers[1]).await.unwrap(), b"layer two");
    assert!(fake.seen().iter().all(|seen| seen.authorization.is_none() && seen.query.is_empty()));
}

#[tokio::test]
async fn an_index_leads_to_the_manifest_for_the_platform() {
    let fake = FakeRegistry::start().await;
    let image = fake.put_image("amd", &[b"layer"]);
    let size = pull_size(&fake, "amd").await;
    let entry = |digest: &Digest, size: usize, architecture: &str| {
        format!(
            r#"{{"mediaType":"{OCI_MANIFEST}","digest":"{digest}","size":{size},"platform":{{"os":"linux","architecture":"{architecture}"}}}}"#
        )
    };
    let index = |size| {
        format!(r#"{{"manifests":[{},{}]}}"#, entry(&Digest::of(b"x"), 1, "arm64"), entry(&image, size, "amd64"))
    };
    let root = fake.put_document("v1", OCI_INDEX, index(size));
    let resolved = pull(&fake, None).await.unwrap();
    assert_eq!((resolved.root.digest, resolved.chosen.digest), (root, image.clone()));

    fake.put_document("v1", OCI_INDEX, index(size + 1));
    let error = pull(&fake, None).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Corrupt);
    assert!(error.chain().contains(&format!("its size is {size}, not {}", size + 1)), "{}", error.chain());

    fake.put_document("v1", OCI_INDEX, format!(r#"{{"manifests":[{}]}}"#, entry(&image, size, "s390x")));
    let error = pull(&fake, None).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Unacceptable);
    assert!(error.chain().contains("linux/s390x"), "{}", error.chain());
}

async fn pull_size(fake: &FakeRegistry, tag: &str) -> usize {
    let reference = fake.reference(&format!("team/app:{tag}"));
    registry().resolve(&reference, None, &platform()).await.unwrap().root.bytes.len()
}

#[tokio::test]
async fn indexes_that_never_end_are_left() {
    let fake = FakeRegistry::start().await;
    let image = fake.put_image("leaf", &[]);
    let mut size = pull_size(&fake, "leaf").await;
    let (mut digest, mut media_type) = (image, OCI_MANIFEST);
    for depth in 1..=6 {
        let text = format!(r#"{{"manifests":[{{"mediaType":"{media_type}","digest":"{digest}","size":{size}}}]}}"#);
        (size, media_type) = (text.len(), OCI_INDEX);
        digest = fake.put_document("v1", OCI_INDEX, text);
        assert_eq!(pull(&fake, None).await.is_ok(), depth <= 4, "{depth} levels");
    }
}

#[tokio::test]
async fn a_password_is_shown_when_it_is_asked_for() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[b"layer"]);
    fake.guard(Guard::Basic("user", "hunter2pass"));
    let resolved = pull(&fake, Some(&credential("hunter2pass"))).await.unwrap();
    assert_eq!(shown(&fake.seen()), [None, Some(SHOWN)]);
    read(&resolved, &resolved.manifest.layers[0]).await.unwrap();
    assert_eq!(shown(&fake.seen()), [Some(SHOWN)]);
}

#[tokio::test]
async fn a_wrong_password_is_tried_once_and_not_repeated_in_the_error() {
    for (guard, stage) in [(Guard::Basic("user", "other"), Stage::Manifest), (bearer(), Stage::Token)] {
        let fake = FakeRegistry::start().await;
        fake.put_image("v1", &[]);
        fake.guard(guard);
        let error = pull(&fake, Some(&credential("wrongsecret"))).await.unwrap_err();
        assert_eq!(error.kind(), RuntimeErrorKind::Denied);
        assert_eq!(error.fault(), Fault::new(ErrorClass::Unauthorized, stage));
        assert!(error.hint().is_some());
        let text = format!("{} {error:?}", error.chain());
        assert!(!text.contains("wrongsecret") && !text.contains("dXNlcjp3cm9uZ3NlY3JldA"), "{text}");
        assert!(fake.seen().len() <= 3);
    }
}

#[tokio::test]
async fn an_image_that_wants_a_credential_says_so() {
    let fake = FakeRegistry::start().await;
    fake.guard(Guard::Never);
    let error = pull(&fake, None).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Denied);
    assert!(error.hint().unwrap().contains("--creds"), "{error:?}");
}

#[tokio::test]
async fn a_token_is_got_for_this_repository_and_used_for_all_of_the_pull() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[b"layer"]);
    fake.guard(bearer());
    let resolved = pull(&fake, Some(&credential("hunter2pass"))).await.unwrap();
    let seen = fake.seen();
    assert_eq!(shown(&seen), [None, Some(SHOWN), Some("Bearer token-0")]);
    assert!(seen[1].query.contains("scope=repository%3Ateam%2Fapp%3Apull"), "{}", seen[1].query);
    assert!(!seen[1].query.contains("everything"), "{}", seen[1].query);
    read(&resolved, &resolved.manifest.layers[0]).await.unwrap();
    assert_eq!(shown(&fake.seen()), [Some("Bearer token-0")]);

    fake.expire_tokens();
    read(&resolved, &resolved.manifest.layers[0]).await.unwrap();
    assert_eq!(shown(&fake.seen()), [Some("Bearer token-0"), Some(SHOWN), Some("Bearer token-1")]);
}

#[tokio::test]
async fn a_manifest_is_confirmed_to_who_may_pull_it_without_its_bytes() {
    let fake = FakeRegistry::start().await;
    let digest = fake.put_image("v1", &[]);
    fake.guard(bearer());
    let (registry, reference) = (registry(), fake.reference("team/app"));
    let confirm = async |credential: Option<&Credential>, digest: &Digest| {
        let session = registry.session(&reference, credential, Patience::FULL).await?;
        session.confirm(&reference.with_digest(digest.clone()), digest).await
    };
    assert!(confirm(Some(&credential("hunter2pass")), &digest).await.unwrap());
    let asked: Vec<_> = fake.seen().into_iter().map(|seen| seen.method).collect();
    assert_eq!(asked, ["HEAD", "GET", "HEAD"], "the challenge, the token, the answer");
    for (credential, digest, kind) in [
        (credential("hunter2pass"), Digest::of(b"other"), RuntimeErrorKind::NotFound),
        (credential("revoked"), digest.clone(), RuntimeErrorKind::Denied),
    ] {
        assert_eq!(confirm(Some(&credential), &digest).await.unwrap_err().kind(), kind);
    }
    fake.guard(Guard::Open);
    fake.trick(digest.as_str(), 1, answer(503, &[("retry-after", "0")], ""));
    assert!(confirm(None, &digest).await.unwrap());
}

#[tokio::test]
async fn a_redirect_to_another_origin_leaves_the_credential_behind() {
    let (fake, storage) = (FakeRegistry::start().await, FakeRegistry::start().await);
    fake.put_image("v1", &[b"layer"]);
    fake.guard(Guard::Basic("user", "hunter2pass"));
    let resolved = pull(&fake, Some(&credential("hunter2pass"))).await.unwrap();
    let layer = resolved.manifest.layers[0].clone();
    storage.put_blob(&b"layer"[..]);
    let elsewhere = format!("http://user:pw@{}/blobs/{}?sig=secretsignature", storage.address, layer.digest);
    fake.trick(layer.digest.as_str(), 9, answer(307, &[("location", &elsewhere)], "moved"));
    assert_eq!(read(&resolved, &layer).await.unwrap(), b"layer");
    let seen = storage.seen();
    assert_eq!(shown(&seen), [None]);
    assert_eq!(seen[0].query, "sig=secretsignature");

    // A 401 of the storage host receives no credential, and the message hides the signature.
    storage.guard(Guard::Never);
    let error = read(&resolved, &layer).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Denied);
    assert!(!error.chain().contains("secretsignature"), "{}", error.chain());
    assert_eq!(shown(&storage.seen()), [None]);
    fake.seen();

    // Nor after a redirect back to the registry.
    let back = format!("http://{}/v2/team/app/blobs/back", fake.address);
    storage.trick(layer.digest.as_str(), 9, answer(302, &[("location", &back)], ""));
    assert!(read(&resolved, &layer).await.is_err());
    let seen = fake.seen();
    assert_eq!(shown(&seen), [Some(SHOWN), None]);
}

#[tokio::test]
async fn redirects_are_followed_only_where_they_lead_somewhere() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[]);
    for (location, works) in [("v1?again", true), ("file:///etc/passwd", false), ("", false), ("ftp://x/", false)] {
        fake.trick("/v1", 1, answer(302, &[("location", location)], ""));
        assert_eq!(pull(&fake, None).await.is_ok(), works, "{location}");
    }
    fake.trick("/v1", 99, answer(301, &[("location", "v1")], ""));
    let error = pull(&fake, None).await.unwrap_err();
    assert!(error.to_string().contains("more than 10 times"), "{error}");
}

#[tokio::test]
async fn a_cut_blob_is_taken_up_where_it_broke() {
    let fake = FakeRegistry::start().await;
    let layer: Vec<u8> = (0..300_000_u32).map(|index| index.to_le_bytes()[0]).collect();
    fake.put_image("v1", &[&layer]);
    let resolved = pull(&fake, None).await.unwrap();
    let descriptor = &resolved.manifest.layers[0];
    fake.trick(descriptor.digest.as_str(), 2, Trick::CutAfter(100_000));
    fake.seen();
    assert_eq!(read(&resolved, descriptor).await.unwrap(), layer);
    let ranges: Vec<_> = fake.seen().into_iter().map(|seen| seen.range).collect();
    assert_eq!(ranges, [None, Some("bytes=100000-".to_owned()), Some("bytes=200000-".to_owned())]);

    fake.trick(descriptor.digest.as_str(), 99, Trick::CutAfter(10));
    let error = read(&resolved, descriptor).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::RegistryUnavailable, "{}", error.chain());
    // Two seconds of retries; a busy machine has time for few.
    assert!((2..=7).contains(&fake.seen().len()), "retries for two seconds");
}

#[tokio::test]
async fn a_range_that_is_not_honoured_is_never_spliced_and_the_whole_is_read_again() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[&[7; 1000]]);
    let resolved = pull(&fake, None).await.unwrap();
    let descriptor = &resolved.manifest.layers[0];
    for trick in [Trick::IgnoreRange, Trick::Header("content-range", "bytes 0-999/1000".to_owned())] {
        fake.trick(descriptor.digest.as_str(), 1, Trick::CutAfter(10));
        fake.trick(descriptor.digest.as_str(), 1, trick);
        fake.seen();
        assert_eq!(read(&resolved, descriptor).await.unwrap(), [7; 1000]);
        let ranges: Vec<_> = fake.seen().into_iter().map(|seen| seen.range).collect();
        assert_eq!(ranges, [None, Some("bytes=10-".to_owned()), None]);
    }
    let mut rest = resolved.session.open_blob(descriptor, 990).await.unwrap();
    assert_eq!(rest.next().await.unwrap().map(|chunk| chunk.len()), Some(10));
    assert_eq!(rest.next().await.unwrap(), None);
    let mut nothing = resolved.session.open_blob(descriptor, 1000).await.unwrap();
    assert_eq!(nothing.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_stalled_blob_is_asked_for_anew_and_given_up_when_that_stalls_again_and_again() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[&vec![7; 50_000]]);
    let resolved = pull(&fake, None).await.unwrap();
    let descriptor = &resolved.manifest.layers[0];
    fake.trick(descriptor.digest.as_str(), 1, Trick::StallAfter(10_000));
    fake.seen();
    assert_eq!(read(&resolved, descriptor).await.unwrap().len(), 50_000);
    let ranges: Vec<_> = fake.seen().into_iter().map(|seen| seen.range).collect();
    assert_eq!(ranges, [None, Some("bytes=10000-".to_owned())]);
    fake.trick(descriptor.digest.as_str(), 9, Trick::StallAfter(10));
    let error = read(&resolved, descriptor).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::TimedOut);
    assert_eq!(error.fault(), Fault::new(ErrorClass::TimedOut, Stage::Blob));
}

#[tokio::test]
async fn a_blob_of_another_size_or_digest_is_refused_with_both_named() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[b"0123456789"]);
    let resolved = pull(&fake, None).await.unwrap();
    let descriptor = &resolved.manifest.layers[0];
    for (what, times, trick, words) in [
        ("short", 9, Trick::Body("".into()), "only 0 bytes"),
        ("long", 1, Trick::Body("0123456789a".into()), "at least 11 bytes"),
        ("another length", 9, answer(200, &[], "0123"), "offers 4 bytes, not the 10"),
    ] {
        fake.trick(descriptor.digest.as_str(), times, trick);
        let error = read(&resolved, descriptor).await.unwrap_err();
        assert_eq!(error.kind(), RuntimeErrorKind::Corrupt, "{what}");
        assert!(error.chain().contains(words) && error.chain().contains("10"), "{what}: {}", error.chain());
        fake.clear_tricks();
    }
    fake.trick(descriptor.digest.as_str(), 1, Trick::Body((&b"012345678"[..]).into()));
    assert_eq!(read(&resolved, descriptor).await.unwrap(), b"0123456789", "the byte that is missing is asked for");

    fake.trick(descriptor.digest.as_str(), 1, Trick::Body((&b"9876543210"[..]).into()));
    fake.seen();
    assert_eq!(&resolved.session.fetch_blob_bytes(descriptor, 100).await.unwrap()[..], b"0123456789", "a second try");
    assert_eq!(fake.seen().len(), 2);
    fake.trick(descriptor.digest.as_str(), 9, Trick::Body((&b"9876543210"[..]).into()));
    let error = resolved.session.fetch_blob_bytes(descriptor, 100).await.unwrap_err();
    assert_eq!(fake.seen().len(), 2, "and no third");
    assert_eq!(error.kind(), RuntimeErrorKind::Corrupt);
    assert!(error.chain().contains(Digest::of(b"9876543210").as_str()), "{}", error.chain());
    assert!(error.chain().contains(descriptor.digest.as_str()), "{}", error.chain());
    let error = resolved.session.fetch_blob_bytes(descriptor, 9).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Unacceptable);
}

#[tokio::test]
async fn a_manifest_of_another_digest_is_refused() {
    let fake = FakeRegistry::start().await;
    let digest = fake.put_image("v1", &[]);
    let lie = Digest::of(b"other");
    fake.trick("/v1", 2, Trick::Header("docker-content-digest", lie.to_string()));
    let error = pull(&fake, None).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Corrupt);
    assert!(error.chain().contains(lie.as_str()) && error.chain().contains(digest.as_str()), "{}", error.chain());

    fake.trick(digest.as_str(), 2, Trick::Body("{}".into()));
    let reference = fake.reference(&format!("team/app@{digest}"));
    let error = registry().resolve(&reference, None, &platform()).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Corrupt);
    assert!(error.chain().contains(digest.as_str()), "{}", error.chain());
    fake.trick(digest.as_str(), 1, Trick::Body("{}".into()));
    assert_eq!(registry().resolve(&reference, None, &platform()).await.unwrap().root.digest, digest, "a second try");
}

#[tokio::test]
async fn a_page_instead_of_a_manifest_is_named_as_such() {
    let fake = FakeRegistry::start().await;
    fake.trick("/v1", 1, answer(200, &[("content-type", "text/html; charset=utf-8")], "<html>log in</html>"));
    let error = pull(&fake, None).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Corrupt);
    assert!(error.chain().contains("text/html"), "{}", error.chain());
    // Whatever it is called, and where a digest is known.
    let digest = fake.put_image("v1", &[]);
    for (tail, kind, page) in [
        ("/v1", "text/html", "<html>log in</html>"),
        ("/v1", "text/html; charset=utf-8", "\u{feff}\n <!DOCTYPE html><html></html>"),
        ("/v1", "application/vnd.oci.image.manifest.v1+json", "<?xml version=\"1.0\"?><Error/>"),
        (digest.as_str(), "text/html", "<html>log in</html>"),
    ] {
        let name = tail.strip_prefix("/v1").map_or_else(|| format!("team/app@{digest}"), |_| "team/app:v1".to_owned());
        fake.trick(tail, 9, answer(200, &[("content-type", kind)], page));
        let error = registry().resolve(&fake.reference(&name), None, &platform()).await.unwrap_err();
        assert_eq!(error.fault(), Fault::new(ErrorClass::AnswerInvalid, Stage::Manifest), "{}", error.chain());
        assert!(error.chain().contains(kind.split(';').next().unwrap()), "{}", error.chain());
        assert!(error.hint().is_some_and(|hint| hint.contains("in place of the registry")), "{}", error.chain());
        let session = registry().session(&fake.reference(&name), None, Patience::FULL).await.unwrap();
        let is_confirmed = session.confirm(&fake.reference(&name), &digest).await.unwrap();
        assert!(!is_confirmed || kind.contains("json"), "a page grants no image");
        fake.clear_tricks();
    }
    fake.trick("/v1", 1, Trick::Answer(200, vec![], vec![b' '; 5 << 20].into()));
    assert_eq!(pull(&fake, None).await.unwrap_err().kind(), RuntimeErrorKind::Unacceptable);
}

#[tokio::test]
async fn passing_trouble_is_waited_out_and_lasting_trouble_named() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[]);
    fake.trick("/v1", 1, answer(429, &[("retry-after", "0")], ""));
    fake.trick("/v1", 1, answer(503, &[("retry-after", "soon")], ""));
    pull(&fake, None).await.unwrap();
    assert_eq!(fake.seen().len(), 3);

    fake.trick("/v1", 1, answer(429, &[("retry-after", "86400")], ""));
    let error = pull(&fake, None).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::RegistryUnavailable);
    assert!(error.to_string().contains("86400 s"), "{error}");
    let retry_after = Some(Duration::from_hours(24));
    assert_eq!(error.fault(), Fault { retry_after, ..Fault::new(ErrorClass::RateLimited, Stage::Manifest) });
    assert!(error.is_outage());
    assert_eq!(fake.seen().len(), 1);

    fake.trick("/v1", 99, answer(500, &[], "out\u{1b}[31m of order"));
    let error = pull(&fake, None).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::RegistryUnavailable);
    assert_eq!(error.fault(), Fault::new(ErrorClass::RegistryFailed, Stage::Manifest));
    let text = error.chain();
    assert!(text.contains("500") && text.ends_with("out[31m of order"), "{text}");
    let seen = fake.seen().len();
    assert!((3..=7).contains(&seen), "retries for two seconds: {seen}");
    assert!(text.contains(&format!("{seen} attempts in ")) && text.contains("at most 2 s"), "{text}");
}

#[tokio::test]
async fn a_rate_limit_is_waited_out_for_as_long_as_the_registry_asks_by_all_of_an_account() {
    let fake = FakeRegistry::start().await;
    let reference = fake.reference("team/app:v1");
    let registry = registry();
    let session = registry.session(&reference, None, Patience::FULL).await.unwrap();
    let query = Query {
        path: "manifests/v1".to_owned(),
        is_head: false,
        range: None,
        is_tag: true,
        subject: "`team/app:v1`".to_owned(),
        urgency: Urgency::is_next(),
    };
    let began = tokio::time::Instant::now();
    for (status, asked) in [(429, 7), (503, 59)] {
        fake.trick("/v1", 1, answer(status, &[("retry-after", &asked.to_string())], ""));
        let failure = session.send_to_host(0, &query).await.map(drop).unwrap_err();
        let mut attempts = Attempts::new([0]);
        session.record_failure(&mut attempts, 0, failure, began);
        let next = attempts.next(tokio::time::Instant::now(), |index| session.standing(index)).unwrap();
        assert!(
            next.is_requested && next.wait > Duration::from_secs(asked - 2),
            "{next:?}: sooner, the limit only grows"
        );
    }
    fake.seen();
    for (credential, is_held) in [(None, true), (Some(&credential("hunter2pass")), false)] {
        fake.put_image("v1", &[]);
        let pulled = registry.resolve(&reference, credential, &platform()).await;
        assert_eq!(fake.seen().is_empty(), is_held, "of another pull");
        if is_held {
            let error = pulled.unwrap_err();
            assert_eq!(error.fault().class, ErrorClass::RateLimited);
            assert!(error.fault().retry_after.is_some_and(|wait| wait > Duration::from_secs(50)), "{}", error.chain());
        }
    }
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let fake = FakeRegistry::start().await;
    let error = pull(&fake, None).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::NotFound);
    assert_eq!(error.fault(), Fault::new(ErrorClass::ImageUnknown, Stage::Manifest));
    assert!(error.to_string().contains("team/app:v1") && error.to_string().contains("MANIFEST_UNKNOWN"), "{error}");

    let gone = fake.reference("team/app:v1");
    drop(fake);
    tokio::task::yield_now().await;
    let error = registry().resolve(&gone, None, &platform()).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::RegistryUnavailable);
    assert_eq!(error.fault(), Fault::new(ErrorClass::ConnectionRefused, Stage::Connect));
    assert!(error.is_outage());
}

#[tokio::test]
async fn mirrors_are_asked_first_without_the_credential_and_then_the_registry() {
    let (fake, mirror) = (FakeRegistry::start().await, FakeRegistry::start().await);
    fake.put_image("v1", &[b"layer"]);
    fake.guard(Guard::Basic("user", "hunter2pass"));
    mirror.guard(Guard::Basic("user", "hunter2pass"));
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join(fake.address.to_string());
    std::fs::create_dir(&own).unwrap();
    let text = format!("[host.\"http://{}\".header]\nx-key = \"k\"\n", mirror.address);
    std::fs::write(own.join("hosts.toml"), text).unwrap();
    let config = RegistryConfig { hosts_dirs: vec![directory.path().to_owned()], ..RegistryConfig::default() };
    let registry = Registry::new(config);
    let reference = fake.reference("team/app:v1");

    let credential = credential("hunter2pass");
    let resolved = registry.resolve(&reference, Some(&credential), &platform()).await.unwrap();
    let seen = mirror.seen();
    assert_eq!(shown(&seen), [None]);
    assert_eq!(seen[0].query, format!("ns={}", fake.address));
    assert_eq!(shown(&fake.seen()), [None, Some(SHOWN)]);

    mirror.guard(Guard::Open);
    mirror.put_blob(&b"layer"[..]);
    let bytes = resolved.session.fetch_blob_bytes(&resolved.manifest.layers[0], 100).await.unwrap();
    assert_eq!((&bytes[..], fake.seen().len()), (&b"layer"[..], 0));
}

#[tokio::test]
async fn an_encrypted_registry_is_believed_only_with_its_authority() {
    let (fake, authority) = FakeRegistry::start_encrypted().await;
    fake.put_image("v1", &[]);
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join(format!("127.0.0.1_{}_", fake.address.port()));
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("ca.pem"), authority).unwrap();
    for (settings, works) in [("", false), ("ca = \"ca.pem\"", true), ("skip_verify = true", true)] {
        let text = format!("server = \"https://{}\"\n{settings}\n", fake.address);
        std::fs::write(own.join("hosts.toml"), text).unwrap();
        let config = RegistryConfig { hosts_dirs: vec![directory.path().to_owned()], ..RegistryConfig::default() };
        let resolved = Registry::new(config).resolve(&fake.reference("team/app:v1"), None, &platform()).await;
        assert_eq!(resolved.is_ok(), works, "{settings}");
        assert_eq!(fake.seen().len(), usize::from(works), "{settings}");
        if let Err(error) = resolved {
            assert_eq!(error.kind(), RuntimeErrorKind::RegistryUnavailable);
            assert_eq!(error.fault(), Fault::new(ErrorClass::CertificateInvalid, Stage::Tls));
            assert!(error.hint().unwrap().contains("`ca`"), "{}", error.chain());
            assert!(!error.is_outage(), "a server answers, and is not trusted");
        }
    }
}

#[tokio::test]
async fn a_plain_registry_asked_over_tls_says_how_to_mend_it() {
    let fake = FakeRegistry::start().await;
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join(fake.address.to_string());
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("hosts.toml"), format!("server = \"https://{}\"\n", fake.address)).unwrap();
    let config = RegistryConfig { hosts_dirs: vec![directory.path().to_owned()], ..RegistryConfig::default() };
    let resolved = Registry::new(config).resolve(&fake.reference("team/app:v1"), None, &platform()).await;
    let error = resolved.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::RegistryUnavailable);
    assert_eq!(error.fault(), Fault::new(ErrorClass::TlsFailed, Stage::Tls));
    assert!(error.to_string().contains("the server speaks plain HTTP"), "{}", error.chain());
    assert!(!error.chain().contains("InvalidContentType"), "{}", error.chain());
    assert!(error.hint().unwrap().contains(&format!("server = \"http://{}\"", fake.address)), "{}", error.chain());
    assert!(!error.is_outage());
    assert!(fake.seen().is_empty());
}
