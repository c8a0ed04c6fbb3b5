//! The completion of a started pull: its record and its final event.

use std::{sync::Arc, time::SystemTime};

use futures_util::{FutureExt as _, future::BoxFuture};
use jiff::Timestamp;
use tokio::{runtime::Handle, sync::watch, time::Instant};

use super::{credentials::access_of, reporter::Reporter};
use crate::{
    audit_log::{Act, ActCode, ActDetails},
    credentials::PullCredentials,
    image::ByteSize,
    manager::{ImageEnd, ended_pods::PodBond, puller::Pulled},
    ports::PullProgress,
    records::Intent,
    text::{quoted, whole_milliseconds},
};

/// Records and reports the end of a requested pull. A drop before the end reports a cancelled pull. If the pull had
/// begun, its intent stays until the records check the image.
pub(super) struct Completion {
    /// The intent of the pull. `None`: the pull has ended.
    pub(super) intent: Option<Intent>,
    pub(super) credentials: PullCredentials,
    pub(super) reporter: Reporter,
    pub(super) bond: PodBond,
    /// The decision log entry that is written if the pull is cancelled.
    pub(super) act: Act,
    pub(super) progress: watch::Receiver<PullProgress>,
    pub(super) image: String,
    pub(super) began: Instant,
}

impl Completion {
    /// Writes the record before the client gets the result. On failure, the intent stays and denies the image to pods.
    pub(super) async fn fulfil(mut self, pulled: &Pulled) {
        let Some(intent) = self.intent.take() else { return };
        let access = access_of(&self.credentials.opened_by(pulled.attempt, &pulled.senders));
        let id = pulled.key.id().clone();
        let records = Arc::clone(&intent.records);
        let fulfilled = records.on_disk(move |_| intent.fulfil(&id, &access, SystemTime::now())).await;
        if let Err(error) = fulfilled {
            tracing::error!(image = %pulled.key.id(), %error, "an image was pulled and could not be recorded");
        }
    }

    pub(super) fn unwanted(&self) -> BoxFuture<'static, ()> {
        self.bond.clone().unwanted().boxed()
    }

    pub(super) fn failed(mut self) -> Option<Intent> {
        self.intent.take()
    }

    /// Like [`Self::fulfil`], for a pull that ended after its last client was dropped.
    pub(super) fn conclude(self, pulled: Pulled) -> BoxFuture<'static, ()> {
        async move {
            let (image, took) = (quoted(&self.image), whole_milliseconds(self.began.elapsed()));
            let size = pulled.size.0;
            let message =
                format!("Pulled image {image} in {took} after its caller was gone. Image size: {size} bytes.");
            self.reporter.finished(ImageEnd::Pulled);
            self.reporter.normal("Pulled", message);
            self.record(Act { code: ActCode::Pulled, ..act_of(&pulled, &self.progress.borrow(), self.act.clone()) });
            self.fulfil(&pulled).await;
        }
        .boxed()
    }

    fn record(&self, act: Act) {
        let details = ActDetails { took_ms: u64::try_from(self.began.elapsed().as_millis()).ok(), ..act.details };
        self.reporter.reports.decisions.act(Act { at: Timestamp::now(), details, ..act });
    }
}

/// Completes a decision log entry with the received bytes, or with the image size if the bytes are unknown.
pub(super) fn act_of(pulled: &Pulled, progress: &PullProgress, act: Act) -> Act {
    let bytes = Some(fetched(pulled, progress).0).filter(|size| *size > 0);
    let details = ActDetails { bytes, hosts: progress.traffic.hosts.clone(), ..act.details };
    Act { keys: vec![pulled.key.to_string()], details, ..act }
}

pub(super) fn fetched(pulled: &Pulled, progress: &PullProgress) -> ByteSize {
    if progress.times.resolved.is_some() { ByteSize(progress.traffic.received) } else { pulled.size }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let Some(intent) = self.intent.take() else { return };
        // Without an async runtime the process is about to end. Then the intent stays for the next start.
        if self.progress.borrow().times.began.is_none()
            && let Ok(handle) = Handle::try_current()
        {
            let (records, image) = (Arc::clone(&intent.records), self.image.clone());
            handle.spawn(async move {
                if let Err(error) = records.on_disk(move |_| intent.withdraw()).await {
                    tracing::warn!(image, %error, "the intent of a pull that never began stays recorded");
                }
            });
        }
        let why = match self.bond.end() {
            Some(end) => format!("the pod {end}"),
            None => "its caller is gone, or the daemon is stopping".to_owned(),
        };
        self.reporter.finished(ImageEnd::Failed);
        let (image, after) = (quoted(&self.image), whole_milliseconds(self.began.elapsed()));
        self.reporter.normal("PullGivenUp", format!("Gave up pulling image {image} after {after}: {why}"));
        let mut act = self.act.clone();
        act.details.why = why;
        self.record(act);
    }
}
