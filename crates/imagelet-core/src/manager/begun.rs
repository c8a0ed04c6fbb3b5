//! What has to be seen done for a pull that began: its record fulfilled, its first event followed by another one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::time::Instant;

use super::{
    ImageManager,
    access::access_of,
    ensure::on_disk,
    puller::Pulled,
    request::{EnsureRequest, PodIdentity},
    startup::{ImageEnd, PullRecorder},
    text::{quoted, whole_milliseconds},
};
use crate::{
    credentials::TrackedCredential,
    decisions::{Act, ActCode, DecisionLog},
    events::{Event, EventKind, EventSink, EventSubject},
    records::{Intent, PullRecords},
};

/// A pull that is on record as begun. Dropped, it stays so until a pass has looked for what it brought.
pub(super) struct Begun {
    pub(super) intent: Intent,
    pub(super) records: Arc<PullRecords>,
    pub(super) credentials: Vec<TrackedCredential>,
    pub(super) announced: Announced,
}

impl Begun {
    /// Puts on record that the pull succeeded, before its caller learns of it. A failure leaves the intent, and lets no
    /// pod in.
    pub(super) async fn fulfil(self, pulled: &Pulled) {
        let Self { intent, records, credentials, announced } = self;
        announced.end();
        let access = access_of(pulled.credential.and_then(|index| credentials.get(index)));
        let id = pulled.id.clone();
        let fulfilled = on_disk(&records, move || intent.fulfil(&id, &access, SystemTime::now())).await;
        if let Err(error) = fulfilled {
            tracing::error!(image = %pulled.id, %error, "an image was pulled and could not be put on record");
        }
    }

    /// The pull failed, which is reported elsewhere.
    pub(super) fn failed(self) -> Intent {
        self.announced.end();
        self.intent
    }

    /// The same for a pull that ended after its last caller went away: it is here, and whose right it was is known.
    pub(super) fn conclude(self, pulled: Pulled) -> BoxFuture<'static, ()> {
        async move {
            self.announced.concluded(&pulled);
            self.fulfil(&pulled).await;
        }
        .boxed()
    }
}

/// The event that a pull began, which another one has to follow. Dropped before its end, the pull was given up.
pub(super) struct Announced {
    events: Arc<dyn EventSink>,
    decisions: Arc<DecisionLog>,
    recorder: Option<Arc<dyn PullRecorder>>,
    pod: PodIdentity,
    subject: EventSubject,
    /// What goes on record where it is given up.
    act: Act,
    image: String,
    began: Instant,
    /// It waits, or runs; a pull that is refused is none that can be given up.
    is_begun: Arc<AtomicBool>,
}

impl Announced {
    pub(super) fn new(
        manager: &ImageManager,
        request: &EnsureRequest,
        began: Instant,
        is_begun: Arc<AtomicBool>,
    ) -> Self {
        Self {
            events: Arc::clone(&manager.events),
            decisions: Arc::clone(&manager.decisions),
            recorder: manager.recorder.clone(),
            pod: request.pod.clone(),
            subject: request.subject(),
            act: request.act(ActCode::PullGivenUp, Duration::ZERO, String::new()),
            image: request.image.clone(),
            began,
            is_begun,
        }
    }

    /// Its end is reported elsewhere.
    fn end(self) {
        self.is_begun.store(false, Ordering::Relaxed);
    }

    /// It went on without its caller, and succeeded.
    fn concluded(&self, pulled: &Pulled) {
        let (image, took) = (quoted(&self.image), whole_milliseconds(self.began.elapsed()));
        let message =
            format!("Pulled image {image} in {took} after its caller was gone. Image size: {} bytes.", pulled.size.0);
        self.settled(ImageEnd::Pulled);
        self.tell("Pulled", message);
        let keys = vec![pulled.key().to_string()];
        let bytes = Some(pulled.fetched.0).filter(|size| *size > 0);
        self.record(Act { code: ActCode::Pulled, keys, bytes, ..self.act.clone() });
    }

    fn settled(&self, end: ImageEnd) {
        if let Some(recorder) = &self.recorder {
            recorder.image_settled(&self.pod, end);
        }
    }

    fn tell(&self, reason: &'static str, message: String) {
        let subject = self.subject.clone();
        self.events.record(Event { kind: EventKind::Normal, reason, message, subject, cause: None });
    }

    fn record(&self, act: Act) {
        let took_ms = u64::try_from(self.began.elapsed().as_millis()).ok();
        self.decisions.act(Act { at: SystemTime::now(), took_ms, ..act });
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        if !self.is_begun.load(Ordering::Relaxed) {
            return;
        }
        let (image, after) = (quoted(&self.image), whole_milliseconds(self.began.elapsed()));
        let why = "its caller is gone, or the daemon is stopping";
        self.settled(ImageEnd::Failed);
        self.tell("PullGivenUp", format!("Gave up pulling image {image} after {after}: {why}"));
        self.record(Act { why: why.to_owned(), ..self.act.clone() });
    }
}
