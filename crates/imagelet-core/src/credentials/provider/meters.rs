//! Metrics of providers, under the kubelet's names (`docs/spec/pull.md §9.1`).

use crate::metrics::{MetricKind, families};

families! {
    /// Failed executions: start failure, bad exit, timeout. Invalid responses are not counted.
    ERRORS = "kubelet_credential_provider_plugin_errors_total", "Number of errors from credential provider plugin",
        MetricKind::Counter, &["plugin_name"];
    DURATION = "kubelet_credential_provider_plugin_duration",
        "Duration of execution in seconds for credential provider plugin",
        MetricKind::Histogram(&[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]), &["plugin_name"];
    CONFIG = "kubelet_credential_provider_config_info",
        "Information about the last applied credential provider configuration with hash as label",
        MetricKind::Gauge, &["hash"];
    /// Every failed lookup of a provider, for any reason.
    FAILURES = "imagelet_credential_provider_failures_total",
        "Number of lookups for which a credential provider gave nothing although it should have.",
        MetricKind::Counter, &["plugin_name", "reason"];
}
