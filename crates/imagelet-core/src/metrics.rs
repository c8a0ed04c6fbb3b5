//! Counters, gauges and histograms, rendered in Prometheus' text format.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::Mutex,
};

use crate::lock::locked;

/// Maximum label sets of a family. Later label sets are counted under [`OVERFLOW`].
const SERIES_MAX: usize = 256;
const OVERFLOW: &str = "other";

#[derive(Debug)]
pub struct Family {
    /// `kubelet_…` if the kubelet has the metric, otherwise `imagelet_…`.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
    pub labels: &'static [&'static str],
}

/// Declares metric families, and `FAMILIES`, the list of these families.
#[macro_export]
macro_rules! families {
    ($($(#[$doc:meta])* $name:ident = $metric:literal, $help:literal, $kind:expr, $labels:expr;)*) => {
        $($(#[$doc])* pub(crate) static $name: $crate::metrics::Family = $crate::metrics::Family {
            name: $metric,
            help: $help,
            kind: $kind,
            labels: $labels,
        };)*
        pub(crate) static FAMILIES: &[&$crate::metrics::Family] = &[$(&$name),*];
    };
}
pub use families;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    Counter,
    Gauge,
    /// The upper bounds of the buckets.
    Histogram(&'static [f64]),
}

impl MetricKind {
    fn bounds(self) -> &'static [f64] {
        if let Self::Histogram(bounds) = self { bounds } else { &[] }
    }
}

#[derive(Debug, Default)]
pub struct Metrics {
    families: Mutex<BTreeMap<&'static str, Registered>>,
}

#[derive(Debug)]
struct Registered {
    family: &'static Family,
    series: BTreeMap<Vec<String>, Series>,
}

#[derive(Debug, Default)]
struct Series {
    /// The value of a counter or gauge, or the sum of a histogram.
    value: f64,
    /// The number of observations, and of those at or below each bound. Only a histogram has them.
    count: u64,
    buckets: Vec<u64>,
}

impl Metrics {
    pub fn new() -> Self {
        Self::default()
    }

    /// Exports a family before its first update. A family without labels has the value zero.
    pub fn declare(&self, family: &'static Family) {
        let mut families = locked(&self.families);
        let registered = registered(&mut families, family);
        if family.labels.is_empty() {
            registered.series(&[]);
        }
    }

    pub fn add(&self, family: &'static Family, labels: &[&str], amount: f64) {
        registered(&mut locked(&self.families), family).series(labels).value += amount;
    }

    pub fn increment(&self, family: &'static Family, labels: &[&str]) {
        self.add(family, labels, 1.0);
    }

    pub fn set(&self, family: &'static Family, labels: &[&str], value: f64) {
        registered(&mut locked(&self.families), family).series(labels).value = value;
    }

    pub fn clear(&self, family: &'static Family) {
        registered(&mut locked(&self.families), family).series.clear();
    }

    pub fn observe(&self, family: &'static Family, labels: &[&str], observed: f64) {
        let mut families = locked(&self.families);
        let series = registered(&mut families, family).series(labels);
        for (bucket, bound) in series.buckets.iter_mut().zip(family.kind.bounds()) {
            *bucket += u64::from(observed <= *bound);
        }
        series.value += observed;
        series.count += 1;
    }

    /// The value of a counter or gauge, or the count of a histogram. Zero before the first update.
    pub fn value(&self, family: &'static Family, labels: &[&str]) -> f64 {
        let key: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        let families = locked(&self.families);
        let series = families.get(family.name).and_then(|registered| registered.series.get(&key));
        let is_histogram = matches!(family.kind, MetricKind::Histogram(_));
        series.map_or(0.0, |series| if is_histogram { series.count as f64 } else { series.value })
    }

    /// All families in Prometheus' text format, sorted by name.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for registered in locked(&self.families).values() {
            registered.render(&mut text).expect("writing to a string cannot fail");
        }
        text
    }
}

fn registered<'a>(families: &'a mut BTreeMap<&'static str, Registered>, family: &'static Family) -> &'a mut Registered {
    families.entry(family.name).or_insert_with(|| Registered { family, series: BTreeMap::new() })
}

impl Registered {
    fn series(&mut self, labels: &[&str]) -> &mut Series {
        debug_assert_eq!(labels.len(), self.family.labels.len(), "{}: a value for each label", self.family.name);
        let mut key: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        if self.series.len() >= SERIES_MAX && !self.series.contains_key(&key) {
            key = vec![OVERFLOW.to_owned(); self.family.labels.len()];
        }
        let buckets = self.family.kind.bounds().len();
        self.series.entry(key).or_insert_with(|| Series { buckets: vec![0; buckets], ..Series::default() })
    }

    fn render(&self, text: &mut String) -> fmt::Result {
        let Family { name, help, kind, labels } = self.family;
        let word = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram(_) => "histogram",
        };
        writeln!(text, "# HELP {name} {}", help.replace('\\', "\\\\").replace('\n', "\\n"))?;
        writeln!(text, "# TYPE {name} {word}")?;
        for (values, Series { value, count, buckets }) in &self.series {
            if word != "histogram" {
                writeln!(text, "{name}{} {value}", Labels(labels, values, None))?;
                continue;
            }
            for (bound, below) in kind.bounds().iter().zip(buckets) {
                writeln!(text, "{name}_bucket{} {below}", Labels(labels, values, Some(&bound.to_string())))?;
            }
            writeln!(text, "{name}_bucket{} {count}", Labels(labels, values, Some("+Inf")))?;
            writeln!(text, "{name}_sum{} {value}", Labels(labels, values, None))?;
            writeln!(text, "{name}_count{} {count}", Labels(labels, values, None))?;
        }
        Ok(())
    }
}

struct Labels<'a>(&'a [&'a str], &'a [String], Option<&'a str>);

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(names, values, bound) = self;
        let values = values.iter().map(String::as_str);
        let pairs = names.iter().copied().zip(values).chain(bound.map(|bound| ("le", bound)));
        let mut separator = '{';
        for (name, value) in pairs {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(f, "{separator}{name}=\"{value}\"")?;
            separator = ',';
        }
        if separator == ',' { f.write_char('}') } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PULLS: Family =
        Family { name: "x_pulls_total", help: "Pulls.", kind: MetricKind::Counter, labels: &["policy"] };
    const KEPT: Family = Family { name: "x_kept", help: "Kept.", kind: MetricKind::Gauge, labels: &[] };
    const TOOK: Family =
        Family { name: "x_seconds", help: "Took.", kind: MetricKind::Histogram(&[0.5, 10.0]), labels: &["size"] };

    #[test]
    fn metrics_are_told_as_prometheus_reads_them() {
        static FAMILIES: [Family; 3] = [PULLS, KEPT, TOOK];
        let metrics = Metrics::new();
        metrics.declare(&FAMILIES[1]);
        metrics.increment(&FAMILIES[0], &["a\"b"]);
        metrics.observe(&FAMILIES[2], &["N/A"], 0.5);
        metrics.observe(&FAMILIES[2], &["N/A"], 11.0);
        let expected = "# HELP x_kept Kept.\n# TYPE x_kept gauge\nx_kept 0\n\
            # HELP x_pulls_total Pulls.\n# TYPE x_pulls_total counter\nx_pulls_total{policy=\"a\\\"b\"} 1\n\
            # HELP x_seconds Took.\n# TYPE x_seconds histogram\n\
            x_seconds_bucket{size=\"N/A\",le=\"0.5\"} 1\nx_seconds_bucket{size=\"N/A\",le=\"10\"} 1\n\
            x_seconds_bucket{size=\"N/A\",le=\"+Inf\"} 2\nx_seconds_sum{size=\"N/A\"} 11.5\nx_seconds_count{size=\"N/A\"} 2\n";
        assert_eq!(metrics.render(), expected);
    }

    #[test]
    fn label_sets_are_bounded() {
        static FAMILY: Family = PULLS;
        let metrics = Metrics::new();
        for index in 0..SERIES_MAX + 10 {
            metrics.increment(&FAMILY, &[&index.to_string()]);
        }
        assert_eq!(metrics.render().lines().count(), 2 + SERIES_MAX + 1);
        assert!(metrics.value(&FAMILY, &[OVERFLOW]) > 9.0);
    }
}
