//! Reports the events of one request, and the startup latency of its pod.

use crate::{
    error::{ErrorClass, Fault, Stage},
    events::{Event, EventKind, EventSubject, PodIdentity},
    manager::{EnsureRequest, ImageEnd, ImageManager, ManagerReports},
};

#[derive(Clone)]
pub(super) struct Reporter {
    pub(super) reports: ManagerReports,
    pod: PodIdentity,
    subject: EventSubject,
}

impl Reporter {
    pub(super) fn new(manager: &ImageManager, request: &EnsureRequest) -> Self {
        Self { reports: manager.parts.reports.clone(), pod: request.pull.pod.clone(), subject: request.subject() }
    }

    pub(super) fn normal(&self, reason: &'static str, message: String) {
        self.event(EventKind::Normal, reason, message, None);
    }

    pub(super) fn warning(&self, reason: &'static str, message: String, fault: &Fault) {
        self.event(EventKind::Warning, reason, message, Some((fault.class, fault.stage)));
    }

    pub(super) fn notice(&self, reason: &'static str, message: String) {
        self.event(EventKind::Warning, reason, message, None);
    }

    fn event(&self, kind: EventKind, reason: &'static str, message: String, cause: Option<(ErrorClass, Stage)>) {
        self.reports.events.record(Event { kind, reason, message, note: None, subject: self.subject.clone(), cause });
    }

    pub(super) fn pull_started(&self) {
        self.reports.recorder.iter().for_each(|recorder| recorder.pull_started(&self.pod));
    }

    pub(super) fn finished(&self, end: ImageEnd) {
        self.reports.recorder.iter().for_each(|recorder| recorder.image_finished(&self.pod, end));
    }
}
