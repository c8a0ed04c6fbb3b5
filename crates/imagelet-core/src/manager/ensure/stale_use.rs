//! Decides whether `Always` may use a recently resolved image during an outage of its registry.
//!
//! Off by default. A rejection (401, 403, 404), a digest mismatch and a moved tag are errors of the pull, not an
//! outage. The records decide on access, as under `IfNotPresent`.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    Ensuring,
    resolved_names::{ResolvedNames, Subject},
};
use crate::{
    error::RuntimeError,
    image::{ImageId, ImageSpec, Platform, Reference},
    manager::{Ensured, ImageEnd, Origin, PullPolicy, meters},
    records::CLOCK_SLACK,
    text::{quoted, whole_milliseconds},
};

const LAG_SHARE: u32 = 24;

#[derive(Clone, Debug)]
pub struct StaleUse {
    age_max: Duration,
    names: Arc<ResolvedNames>,
}

impl StaleUse {
    /// Permits use for `age_max` after the registry's last answer. Reads `file`, which stores the answers (`None`: no
    /// file).
    pub fn new(age_max: Duration, file: Option<PathBuf>) -> Self {
        Self { age_max, names: Arc::new(ResolvedNames::open(file, age_max / LAG_SHARE)) }
    }
}

impl Ensuring<'_> {
    pub(super) async fn remember_resolved(&self, reference: &Reference, spec: &ImageSpec, image: &ImageId) {
        let Some(stale) = &self.manager.parts.stale else { return };
        let subject = subject(reference, spec, self.request.pull.platform.as_ref());
        if !stale.names.put(subject, image, SystemTime::now()) {
            return;
        }
        let names = Arc::clone(&stale.names);
        let written = tokio::task::spawn_blocking(move || names.write(SystemTime::now())).await;
        if let Err(error) = written.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
            tracing::warn!(image = spec.image, %error, "could not record when a name was resolved");
        }
    }

    pub(super) async fn use_stale(
        &self,
        reference: &Reference,
        spec: &ImageSpec,
        failure: &RuntimeError,
    ) -> Option<Ensured> {
        let stale = self.manager.parts.stale.as_ref().filter(|_| is_outage(&self.request.policy, failure))?;
        let found = self.manager.parts.runtime.usable(spec).await;
        let found = found.inspect_err(|error| {
            tracing::warn!(image = self.request.image(), error = error.chain(), "could not look for a present image");
        });
        let found = found.ok()?;
        let resolved = stale.names.get(&subject(reference, spec, self.request.pull.platform.as_ref()));
        let age = age(resolved.as_ref(), found.as_ref().map(|image| &image.id), stale.age_max, SystemTime::now());
        let age = age.inspect_err(|why| {
            tracing::info!(image = self.request.image(), %why, "no present image is used while its registry is away");
        });
        let (age, found) = (age.ok()?, found?);
        // A client without access gets the registry's error, which does not reveal that the image is present.
        if !self.may_use(&found).await.is_ok_and(|allowed| allowed) {
            return None;
        }
        let message = format!(
            "Container image {} already present on machine, used although its registry is unavailable: {} was last \
             verified {} ago",
            quoted(self.request.image()),
            found.id,
            whole_milliseconds(Duration::from_secs(age.as_secs()))
        );
        tracing::warn!(image = self.request.image(), id = %found.id, error = failure.chain(), "used an image unverified");
        self.reporter.normal("Pulled", message.clone());
        self.manager.parts.reports.metrics.increment(&meters::STALE_USED, &[]);
        self.reporter.finished(ImageEnd::Pulled);
        let key = found.key();
        self.touch(&key, None);
        Some(Ensured::new(&key, spec.clone(), Origin::Stale { verified: age }, message))
    }
}

fn subject(reference: &Reference, spec: &ImageSpec, platform: Option<&Platform>) -> Subject {
    Subject {
        name: reference.canonical().to_string(),
        platform: platform.map(ToString::to_string).unwrap_or_default(),
        handler: spec.runtime_handler.clone(),
    }
}

const ABSENT: &str = "it is not here";
const UNVERIFIED: &str = "its registry did not name it to this node";
const MOVED: &str = "its registry has named another image";
const TOO_OLD: &str = "that its registry named it was too long ago";

fn is_outage(policy: &PullPolicy, failure: &RuntimeError) -> bool {
    *policy == PullPolicy::Always && failure.is_outage()
}

/// The time since the registry resolved the name to the present image, or the reason to reject the image.
fn age(
    verified: Option<&(ImageId, SystemTime)>,
    present: Option<&ImageId>,
    age_max: Duration,
    now: SystemTime,
) -> Result<Duration, &'static str> {
    let present = present.ok_or(ABSENT)?;
    let (named, at) = verified.ok_or(UNVERIFIED)?;
    if named != present {
        return Err(MOVED);
    }
    match now.duration_since(*at) {
        Ok(age) if age <= age_max => Ok(age),
        Err(ahead) if ahead.duration() <= CLOCK_SLACK => Ok(Duration::ZERO),
        _ => Err(TOO_OLD),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::error::RuntimeErrorKind;

    #[test]
    fn only_always_and_only_an_outage_looks_for_a_present_image() {
        use RuntimeErrorKind::{
            Corrupt, Denied, DiskFull, InvalidArgument, NotFound, Other, RegistryUnavailable, SignatureInvalid,
            TimedOut, Unacceptable, Unavailable,
        };
        let away = || RuntimeError::new(RegistryUnavailable, "could not reach `reg.io`");
        assert!(is_outage(&PullPolicy::Always, &away()));
        for policy in [PullPolicy::IfNotPresent, PullPolicy::Never, PullPolicy::as_written("always")] {
            assert!(!is_outage(&policy, &away()), "{policy}");
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
            assert!(!is_outage(&PullPolicy::Always, &RuntimeError::new(kind, "no")), "{kind:?}");
        }
        assert!(!is_outage(&PullPolicy::Always, &away().not_an_outage()));
        let wrapped = RuntimeError::new(RegistryUnavailable, "could not pull").caused_by(away().not_an_outage());
        assert!(!is_outage(&PullPolicy::Always, &wrapped), "the mark is found below");
        assert!(is_outage(&PullPolicy::Always, &RuntimeError::new(RegistryUnavailable, "so").caused_by(away())));
    }

    #[test]
    fn an_answer_counts_for_the_image_it_named_within_the_bound() {
        let (a, b) = (ImageId::new("sha256:a"), ImageId::new("sha256:b"));
        let (now, bound) = (UNIX_EPOCH + Duration::from_secs(1_000_000_000), Duration::from_secs(100));
        let named = |image: &ImageId, seconds: i64| {
            let offset = Duration::from_secs(seconds.unsigned_abs());
            let at = if seconds < 0 { now + offset } else { now - offset };
            Some((image.clone(), at))
        };
        for (verified, present, expected) in [
            (named(&a, 0), Some(&a), Ok(0)),
            (named(&a, 100), Some(&a), Ok(100)),
            (named(&a, 101), Some(&a), Err(TOO_OLD)),
            (named(&a, 1_000_000), Some(&a), Err(TOO_OLD)),
            (named(&a, 365 * 24 * 3600), Some(&a), Err(TOO_OLD)),
            (named(&a, -3600), Some(&a), Err(TOO_OLD)),
            (named(&a, -365 * 24 * 3600), Some(&a), Err(TOO_OLD)),
            (named(&a, -300), Some(&a), Ok(0)),
            (named(&a, -301), Some(&a), Err(TOO_OLD)),
            (named(&b, 0), Some(&a), Err(MOVED)),
            (None, Some(&a), Err(UNVERIFIED)),
            (named(&a, 0), None, Err(ABSENT)),
            (None, None, Err(ABSENT)),
        ] {
            let found = age(verified.as_ref(), present, bound, now);
            assert_eq!(found, expected.map(Duration::from_secs), "{verified:?} {present:?}");
        }
    }

    #[test]
    fn two_spellings_of_a_name_are_one_subject() {
        let of = |image: &str, handler: &str, platform| {
            let spec = ImageSpec { runtime_handler: handler.into(), ..ImageSpec::new(image) };
            subject(&image.parse().unwrap(), &spec, platform)
        };
        let plain = of("busybox:1", "", None);
        assert_eq!(plain, of("docker.io/library/busybox:1", "", None));
        assert_ne!(plain, of("busybox:2", "", None));
        assert_ne!(plain, of("busybox:1", "kata", None));
        assert_ne!(plain, of("busybox:1", "", Some(&Platform::host())));
    }
}
