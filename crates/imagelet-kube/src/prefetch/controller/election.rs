//! Leader election with a `Lease` of `coordination.k8s.io`: at most one controller is active.

use std::time::Duration;

use imagelet_core::retry_wait::random_share;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::api_error::{code, text};

const LEASE: &str = "imagelet-controller";
/// A lease that its holder does not renew for this time is free.
const LEASE_LASTS: Duration = Duration::from_secs(30);
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// A holder that could not renew its lease for this time stops, before another candidate may start.
const RENEWED_MAX: Duration = Duration::from_secs(20);

pub(super) struct Election {
    api: Api<Lease>,
    identity: String,
    /// The last read lease, and the time of its last change by this process' clock. No other clock is trusted.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Election {
    pub(super) fn new(client: Client, namespace: &str, identity: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), identity: identity.to_owned(), seen: None }
    }

    pub(super) async fn acquire(&mut self, answered: impl Fn()) {
        let mut is_failing = false;
        loop {
            match self.try_hold().await {
                Ok(true) => return,
                Ok(false) => {
                    is_failing = false;
                    answered();
                }
                Err(error) if !is_failing => {
                    is_failing = true;
                    tracing::warn!(error = text(&error), "could not read or write the lease of the controller");
                }
                Err(_) => {}
            }
            sleep(RENEW_EVERY.mul_f64(0.75 + 0.5 * random_share())).await;
        }
    }

    /// Renews the lease. Returns if another process has the lease, or if no renewal succeeds for `RENEWED_MAX`.
    pub(super) async fn hold(&mut self) {
        let mut ends_at = Instant::now() + RENEWED_MAX;
        loop {
            sleep_until(ends_at.min(Instant::now() + RENEW_EVERY.mul_f64(0.9 + 0.1 * random_share()))).await;
            match timeout_at(ends_at, self.try_hold()).await {
                Ok(Ok(true)) => ends_at = Instant::now() + RENEWED_MAX,
                Ok(Ok(false)) | Err(_) => return,
                Ok(Err(error)) => {
                    tracing::warn!(error = text(&error), "could not renew the lease of the controller");
                }
            }
        }
    }

    async fn try_hold(&mut self) -> Result<bool, kube::Error> {
        let found = self.api.get_opt(LEASE).await?;
        let (lease, now) = (found.as_ref().and_then(|lease| lease.spec.as_ref()), Instant::now());
        if self.seen.as_ref().map(|(seen, _)| seen) != lease {
            self.seen = lease.map(|lease| (lease.clone(), now));
        }
        let unchanged_for = self.seen.as_ref().map_or(Duration::ZERO, |(_, since)| now - *since);
        if !is_free(lease, &self.identity, unchanged_for) {
            return Ok(false);
        }
        let spec = Some(next(lease, &self.identity, Timestamp::now()));
        let written = if let Some(found) = found {
            // The request has the version of the lease that was read. If the lease has changed, the answer is 409.
            self.api.replace(LEASE, &PostParams::default(), &Lease { spec, ..found }).await
        } else {
            let metadata = ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() };
            self.api.create(&PostParams::default(), &Lease { metadata, spec }).await
        };
        match written {
            Ok(lease) => {
                self.seen = lease.spec.map(|lease| (lease, Instant::now()));
                Ok(true)
            }
            Err(error) if code(&error) == Some(409) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn holder(lease: Option<&LeaseSpec>) -> &str {
    lease.and_then(|lease| lease.holder_identity.as_deref()).unwrap_or_default()
}

fn is_free(lease: Option<&LeaseSpec>, identity: &str, unchanged_for: Duration) -> bool {
    let holder = holder(lease);
    holder.is_empty() || holder == identity || unchanged_for >= LEASE_LASTS
}

fn next(lease: Option<&LeaseSpec>, identity: &str, now: Timestamp) -> LeaseSpec {
    let is_taken = holder(lease) != identity;
    let (before, now) = (lease.cloned().unwrap_or_default(), MicroTime(now));
    let transitions = before.lease_transitions.unwrap_or_default();
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(LEASE_LASTS.as_secs()).ok(),
        acquire_time: if is_taken { Some(now.clone()) } else { before.acquire_time },
        renew_time: Some(now),
        lease_transitions: Some(transitions.saturating_add(i32::from(is_taken && lease.is_some()))),
        ..before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: &str, seconds: Option<i32>) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: seconds,
            lease_transitions: Some(4),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_free_and_renewed_by_its_holder() {
        let seconds = Duration::from_secs;
        for (lease, unchanged_for, expected) in [
            (None, seconds(0), true),
            (Some(held_by("", None)), seconds(0), true),
            (Some(held_by("me", Some(30))), seconds(900), true),
            (Some(held_by("other", Some(30))), seconds(29), false),
            (Some(held_by("other", Some(30))), seconds(30), true),
        ] {
            assert_eq!(is_free(lease.as_ref(), "me", unchanged_for), expected, "{lease:?} {unchanged_for:?}");
        }
    }

    #[test]
    fn a_transition_is_counted_when_the_holder_changes() {
        let now = Timestamp::from_millisecond(1500).unwrap();
        let taken = next(Some(&held_by("other", Some(30))), "me", now);
        assert_eq!((taken.lease_transitions, &taken.acquire_time), (Some(5), &Some(MicroTime(now))));
        let renewed = next(Some(&taken), "me", now + Duration::from_secs(10));
        assert_eq!((renewed.lease_transitions, &renewed.acquire_time), (Some(5), &taken.acquire_time));
        assert_eq!(renewed.renew_time, Some(MicroTime(now + Duration::from_secs(10))));
    }
}
