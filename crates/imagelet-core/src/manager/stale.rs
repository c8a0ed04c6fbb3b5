//! Under `Always`, while its registry is away: whether an image that the registry named not long ago may be used.
//!
//! Off unless it is asked for. An outage is no answer at all: whoever is told no (401, 403, 404), is sent other bytes than
//! were promised, or has learned that a tag has moved, gets that error. The records decide who may use the image, as they
//! do under `IfNotPresent`.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    ensure::Ensuring,
    request::{Ensured, Origin, PullPolicy},
    startup::ImageEnd,
    text::{quoted, whole_milliseconds},
    verified::{Subject, Verified, VerifiedNames},
};
use crate::{
    events::EventKind,
    image::{Image, ImageId, ImageSpec, Platform, Reference},
    runtime::RuntimeError,
};

/// A time this far ahead is a clock that was put right; what is further ahead is not believed.
const CLOCK_SLACK: Duration = Duration::from_mins(5);
/// The file's times lag behind by at most this share of the bound.
const LAG_SHARE: u32 = 24;

/// That images may be used while their registry is away, and for how long.
#[derive(Clone, Debug)]
pub struct StaleUse {
    age_max: Duration,
    verified: Arc<VerifiedNames>,
}

impl StaleUse {
    /// Up to this long after the registry last named the image; remembered in a file, or until the process ends. Reads
    /// the file.
    pub fn new(age_max: Duration, file: Option<PathBuf>) -> Self {
        Self { age_max, verified: Arc::new(VerifiedNames::open(file, age_max / LAG_SHARE)) }
    }

    /// Remembers that the registry has just said what a name leads to.
    pub(super) async fn verified(&self, spec: &ImageSpec, platform: Option<&Platform>, image: &ImageId) {
        if !self.verified.put(subject(spec, platform), image.clone(), SystemTime::now()) {
            return;
        }
        let verified = Arc::clone(&self.verified);
        let written = tokio::task::spawn_blocking(move || verified.write()).await;
        if let Err(error) = written.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
            tracing::warn!(image = spec.image, %error, "could not keep when a name was verified");
        }
    }

    /// How long ago the registry said that the name leads to the image that is here; `Err`: it is not used.
    pub(super) fn age(
        &self,
        spec: &ImageSpec,
        platform: Option<&Platform>,
        present: Option<&Image>,
    ) -> Result<Duration, NotUsed> {
        let verified = self.verified.get(&subject(spec, platform));
        age(verified.as_ref(), present.map(|image| &image.id), self.age_max, SystemTime::now())
    }
}

impl Ensuring<'_> {
    /// A pull has just asked the registry.
    pub(super) async fn remember_verified(&self, spec: &ImageSpec, image: &ImageId) {
        if let Some(stale) = &self.manager.stale {
            stale.verified(spec, self.request.platform.as_ref(), image).await;
        }
    }

    /// The present image in place of one that cannot be asked for. `None`: what the pull failed with stands.
    pub(super) async fn use_stale(&self, spec: &ImageSpec, failure: &RuntimeError) -> Option<Ensured> {
        let stale = self.manager.stale.as_ref().filter(|_| is_outage(self.request.policy, failure))?;
        let found = self.manager.runtime.images().status(spec).await;
        let found = found.inspect_err(|error| {
            tracing::warn!(image = self.request.image, error = error.chain(), "could not look for a present image");
        });
        let found = found.ok()?;
        let age = match stale.age(spec, self.request.platform.as_ref(), found.as_ref()) {
            Ok(age) => age,
            Err(why) => {
                tracing::info!(image = self.request.image, %why, "no present image is used while its registry is away");
                return None;
            }
        };
        let found = found?;
        // Who has no right is told what the registry said, and not that the image is here.
        if !self.may_use(&found).await.is_ok_and(|allowed| allowed) {
            return None;
        }
        let message = format!(
            "Container image {} already present on machine, used although its registry is unavailable: {} was last \
             verified {} ago",
            quoted(&self.request.image),
            found.id,
            whole_milliseconds(Duration::from_secs(age.as_secs()))
        );
        tracing::warn!(image = self.request.image, id = %found.id, error = failure.chain(), "used an image unverified");
        self.tell(EventKind::Normal, "Pulled", message.clone());
        self.manager.meters.used_stale();
        self.settled(ImageEnd::Pulled);
        let key = found.key();
        self.touch(&key, None);
        let (id, handler) = (key.id().clone(), key.handler().to_owned());
        Some(Ensured { id, handler, reference: spec.image.clone(), origin: Origin::Stale { verified: age }, message })
    }
}

fn subject(spec: &ImageSpec, platform: Option<&Platform>) -> Subject {
    let reference = spec.image.parse::<Reference>();
    Subject {
        name: reference.map_or_else(|_| spec.image.clone(), |reference| reference.canonical().to_string()),
        platform: platform.cloned(),
        handler: spec.runtime_handler.clone(),
    }
}

/// Why an image is not used while its registry is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotUsed {
    #[error("it is not here")]
    Absent,
    #[error("its registry did not name it to this node")]
    Unverified,
    #[error("its registry has named another image")]
    Moved,
    #[error("that its registry named it was too long ago")]
    TooOld,
}

/// Whether a failure to pull lets a present image be looked for at all.
pub(super) fn is_outage(policy: PullPolicy, failure: &RuntimeError) -> bool {
    policy == PullPolicy::Always && failure.is_outage()
}

/// How old an answer of the registry is that still counts.
fn age(
    verified: Option<&Verified>,
    present: Option<&ImageId>,
    age_max: Duration,
    now: SystemTime,
) -> Result<Duration, NotUsed> {
    let present = present.ok_or(NotUsed::Absent)?;
    let verified = verified.ok_or(NotUsed::Unverified)?;
    if verified.image != *present {
        return Err(NotUsed::Moved);
    }
    match now.duration_since(verified.at) {
        Ok(age) if age <= age_max => Ok(age),
        Err(ahead) if ahead.duration() <= CLOCK_SLACK => Ok(Duration::ZERO),
        _ => Err(NotUsed::TooOld),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::runtime::RuntimeErrorKind;

    #[test]
    fn only_always_and_only_an_outage_looks_for_a_present_image() {
        use RuntimeErrorKind::{
            Corrupt, Denied, DiskFull, InvalidArgument, NotFound, Other, RegistryUnavailable, SignatureInvalid,
            TimedOut, Unacceptable, Unavailable,
        };
        let away = || RuntimeError::new(RegistryUnavailable, "could not reach `reg.io`");
        assert!(is_outage(PullPolicy::Always, &away()));
        for policy in [PullPolicy::IfNotPresent, PullPolicy::Never, PullPolicy::as_written("always")] {
            assert!(!is_outage(policy, &away()), "{policy}");
        }
        for kind in [
            NotFound,
            Denied,
            Corrupt,
            SignatureInvalid,
            Unacceptable,
            DiskFull,
            Unavailable,
            InvalidArgument,
            TimedOut,
            Other,
        ] {
            assert!(!is_outage(PullPolicy::Always, &RuntimeError::new(kind, "no")), "{kind:?}");
        }
        assert!(!is_outage(PullPolicy::Always, &away().not_an_outage()));
        let wrapped = RuntimeError::new(RegistryUnavailable, "could not pull").caused_by(away().not_an_outage());
        assert!(!is_outage(PullPolicy::Always, &wrapped), "the mark is found below");
        assert!(is_outage(PullPolicy::Always, &RuntimeError::new(RegistryUnavailable, "so").caused_by(away())));
    }

    #[test]
    fn an_answer_counts_for_the_image_it_named_within_the_bound() {
        let (a, b) = (ImageId::new("sha256:a"), ImageId::new("sha256:b"));
        let (now, bound) = (UNIX_EPOCH + Duration::from_secs(1_000_000), Duration::from_secs(100));
        let named = |image: &ImageId, seconds: i64| {
            let offset = Duration::from_secs(seconds.unsigned_abs());
            Some(Verified { image: image.clone(), at: if seconds < 0 { now + offset } else { now - offset } })
        };
        for (verified, present, expected) in [
            (named(&a, 0), Some(&a), Ok(0)),
            (named(&a, 100), Some(&a), Ok(100)),
            (named(&a, 101), Some(&a), Err(NotUsed::TooOld)),
            (named(&a, 1_000_000), Some(&a), Err(NotUsed::TooOld)),
            (named(&a, -300), Some(&a), Ok(0)),
            (named(&a, -301), Some(&a), Err(NotUsed::TooOld)),
            (named(&b, 0), Some(&a), Err(NotUsed::Moved)),
            (None, Some(&a), Err(NotUsed::Unverified)),
            (named(&a, 0), None, Err(NotUsed::Absent)),
            (None, None, Err(NotUsed::Absent)),
        ] {
            let found = age(verified.as_ref(), present, bound, now);
            assert_eq!(found, expected.map(Duration::from_secs), "{verified:?} {present:?}");
        }
    }

    #[test]
    fn two_spellings_of_a_name_are_one_subject() {
        let spec = |image: &str| ImageSpec::new(image);
        assert_eq!(subject(&spec("busybox:1"), None), subject(&spec("docker.io/library/busybox:1"), None));
        assert_ne!(subject(&spec("busybox:1"), None), subject(&spec("busybox:2"), None));
        let handled = ImageSpec { runtime_handler: "kata".into(), ..spec("busybox:1") };
        assert_ne!(subject(&handled, None), subject(&spec("busybox:1"), None));
        assert_ne!(subject(&spec("busybox:1"), Some(&Platform::host())), subject(&spec("busybox:1"), None));
    }
}
