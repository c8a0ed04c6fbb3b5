//! Metrics of providers, under the kubelet's names (`docs/spec/pull.md §9.1`).

use std::{sync::Arc, time::Duration};

use crate::metrics::{Family, MetricKind, Metrics};

/// Failed executions: start failure, bad exit, timeout. Invalid responses are not counted.
pub(super) static ERRORS: Family = Family {
    name: "kubelet_credential_provider_plugin_errors_total",
    help: "Number of errors from credential provider plugin",
    kind: MetricKind::Counter,
    labels: &["plugin_name"],
};

pub(super) static DURATION: Family = Family {
    name: "kubelet_credential_provider_plugin_duration",
    help: "Duration of execution in seconds for credential provider plugin",
    kind: MetricKind::Histogram(&[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
    labels: &["plugin_name"],
};

pub(super) static CONFIG: Family = Family {
    name: "kubelet_credential_provider_config_info",
    help: "Information about the last applied credential provider configuration with hash as label",
    kind: MetricKind::Gauge,
    labels: &["hash"],
};

/// Every failed lookup of a provider, for any reason.
pub(super) static FAILURES: Family = Family {
    name: "imagelet_credential_provider_failures_total",
    help: "Number of lookups for which a credential provider gave nothing although it should have.",
    kind: MetricKind::Counter,
    labels: &["plugin_name", "reason"],
};

pub(in crate::credentials) static FAMILIES: [&Family; 4] = [&ERRORS, &DURATION, &CONFIG, &FAILURES];

#[derive(Clone, Debug)]
pub(super) struct Meters {
    metrics: Arc<Metrics>,
}

impl Meters {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        for family in FAMILIES {
            metrics.declare(family);
        }
        Self { metrics }
    }

    pub(super) fn ran(&self, provider: &str, took: Duration, failed: bool) {
        self.metrics.observe(&DURATION, &[provider], took.as_secs_f64());
        if failed {
            self.metrics.increment(&ERRORS, &[provider]);
        }
    }

    pub(super) fn failed(&self, provider: &str, reason: &str) {
        self.metrics.increment(&FAILURES, &[provider, reason]);
    }

    pub(super) fn configured(&self, hash: Option<&str>) {
        self.metrics.clear(&CONFIG);
        if let Some(hash) = hash {
            self.metrics.set(&CONFIG, &[hash], 1.0);
        }
    }
}
