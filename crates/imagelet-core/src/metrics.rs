//! Counters, gauges and histograms, rendered in Prometheus' text format.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Most label sets of a family; later ones are counted under [`OVERFLOW`].
const SERIES_MAX: usize = 256;
/// The label value of sets beyond [`SERIES_MAX`].
const OVERFLOW: &str = "other";

/// A metric family: name, help text and labels. Declared as a constant where it is counted.
#[derive(Debug)]
pub struct Family {
    /// The full name: `kubelet_…` where the kubelet has it, `imagelet_…` elsewhere.
    pub name: &'static str,
    /// The help text, one line.
    pub help: &'static str,
    /// The metric type.
    pub kind: MetricKind,
    /// Label names, in the order of their values.
    pub labels: &'static [&'static str],
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// Never decreases.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Observations in buckets with these upper bounds.
    Histogram(&'static [f64]),
}

/// All metrics of a program.
#[derive(Debug, Default)]
pub struct Metrics {
    families: Mutex<BTreeMap<&'static str, Registered>>,
}

#[derive(Debug)]
struct Registered {
    family: &'static Family,
    series: BTreeMap<Vec<String>, Value>,
}

#[derive(Clone, Debug)]
enum Value {
    Number(Number),
    Histogram(Histogram),
}

/// One series of a counter or gauge. Cheap to clone; an update needs no lookup.
#[derive(Clone, Debug, Default)]
pub struct Number(Arc<AtomicU64>);

/// One series of a histogram. Cheap to clone; an update needs no lookup.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Mutex<Observed>>);

#[derive(Debug)]
struct Observed {
    bounds: &'static [f64],
    buckets: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Number {
    /// Adds an amount.
    pub fn add(&self, amount: f64) {
        let added = |bits| Some((f64::from_bits(bits) + amount).to_bits());
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added).expect("it is never refused");
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self(Arc::new(Mutex::new(Observed { bounds, buckets: vec![0; bounds.len()], sum: 0.0, count: 0 })))
    }

    /// Adds an observation.
    pub fn observe(&self, observed: f64) {
        let mut all = self.lock();
        let Observed { bounds, buckets, sum, count } = &mut *all;
        for (bucket, bound) in buckets.iter_mut().zip(*bounds) {
            *bucket += u64::from(observed <= *bound);
        }
        *sum += observed;
        *count += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Observed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A series that is looked up at its first update, and exported from then on.
#[derive(Debug)]
pub struct Late<T>(OnceLock<T>);

impl<T> Default for Late<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> Late<T> {
    /// The series, looked up the first time.
    pub fn get(&self, look_up: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(look_up)
    }
}

impl Metrics {
    /// Without families.
    pub fn new() -> Self {
        Self::default()
    }

    /// Exports the zero of a family without labels before its first update.
    pub fn declare(&self, family: &'static Family) {
        let mut families = self.lock();
        let registered = registered(&mut families, family);
        if family.labels.is_empty() {
            registered.value(&[]);
        }
    }

    /// One series of a counter or gauge, for frequent updates. Exported from now on.
    pub fn number(&self, family: &'static Family, labels: &[&str]) -> Number {
        match registered(&mut self.lock(), family).value(labels) {
            Value::Number(number) => number.clone(),
            Value::Histogram(_) => Number::default(),
        }
    }

    /// One series of a histogram, for frequent observations. Exported from now on.
    pub fn histogram(&self, family: &'static Family, labels: &[&str]) -> Histogram {
        match registered(&mut self.lock(), family).value(labels) {
            Value::Histogram(histogram) => histogram.clone(),
            Value::Number(_) => Histogram::new(&[]),
        }
    }

    /// Adds to a counter or gauge.
    pub fn add(&self, family: &'static Family, labels: &[&str], amount: f64) {
        if let Value::Number(number) = registered(&mut self.lock(), family).value(labels) {
            number.add(amount);
        }
    }

    /// Adds one.
    pub fn increment(&self, family: &'static Family, labels: &[&str]) {
        self.add(family, labels, 1.0);
    }

    /// Sets a gauge.
    pub fn set(&self, family: &'static Family, labels: &[&str], value: f64) {
        if let Value::Number(number) = registered(&mut self.lock(), family).value(labels) {
            number.set(value);
        }
    }

    /// Removes every series of a family.
    pub fn clear(&self, family: &'static Family) {
        registered(&mut self.lock(), family).series.clear();
    }

    /// Adds an observation to a histogram.
    pub fn observe(&self, family: &'static Family, labels: &[&str], observed: f64) {
        if let Value::Histogram(histogram) = registered(&mut self.lock(), family).value(labels) {
            histogram.observe(observed);
        }
    }

    /// The value of a counter or gauge, or the count of a histogram; zero without an update.
    pub fn value(&self, family: &'static Family, labels: &[&str]) -> f64 {
        let key: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        match self.lock().get(family.name).and_then(|registered| registered.series.get(&key)) {
            Some(Value::Number(number)) => number.get(),
            Some(Value::Histogram(histogram)) => histogram.lock().count as f64,
            None => 0.0,
        }
    }

    /// All families in Prometheus' text format, by name.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for registered in self.lock().values() {
            registered.render(&mut text).expect("writing to a string cannot fail");
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Registered>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn registered<'a>(families: &'a mut BTreeMap<&'static str, Registered>, family: &'static Family) -> &'a mut Registered {
    families.entry(family.name).or_insert_with(|| Registered { family, series: BTreeMap::new() })
}

impl Registered {
    fn value(&mut self, labels: &[&str]) -> &mut Value {
        debug_assert_eq!(labels.len(), self.family.labels.len(), "{}: a value for each label", self.family.name);
        let mut key: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        if self.series.len() >= SERIES_MAX && !self.series.contains_key(&key) {
            key = vec![OVERFLOW.to_owned(); self.family.labels.len()];
        }
        let kind = self.family.kind;
        self.series.entry(key).or_insert_with(|| match kind {
            MetricKind::Counter | MetricKind::Gauge => Value::Number(Number::default()),
            MetricKind::Histogram(bounds) => Value::Histogram(Histogram::new(bounds)),
        })
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
        for (values, value) in &self.series {
            match value {
                Value::Histogram(histogram) => {
                    let all = histogram.lock();
                    for (bound, below) in all.bounds.iter().zip(&all.buckets) {
                        let labels = Labels { names: labels, values, bound: Some(&bound.to_string()) };
                        writeln!(text, "{name}_bucket{labels} {below}")?;
                    }
                    let infinite = Labels { names: labels, values, bound: Some("+Inf") };
                    writeln!(text, "{name}_bucket{infinite} {}", all.count)?;
                    let labels = Labels { names: labels, values, bound: None };
                    writeln!(text, "{name}_sum{labels} {}", all.sum)?;
                    writeln!(text, "{name}_count{labels} {}", all.count)?;
                }
                Value::Number(number) => {
                    let labels = Labels { names: labels, values, bound: None };
                    writeln!(text, "{name}{labels} {}", number.get())?;
                }
            }
        }
        Ok(())
    }
}

struct Labels<'a> {
    names: &'a [&'a str],
    values: &'a [String],
    bound: Option<&'a str>,
}

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.iter().map(String::as_str);
        let pairs = self.names.iter().copied().zip(values).chain(self.bound.map(|bound| ("le", bound)));
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
