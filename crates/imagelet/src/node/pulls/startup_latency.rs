//! Startup latency of pods, as `status` and `why` show it.

use imagelet_core::{
    image::Reference,
    manager::{PodImages, PodStarts},
};

use crate::api::{PodStartRow, moment};

impl PodStartRow {
    pub(crate) fn all(starts: &PodStarts) -> Vec<Self> {
        starts.all().into_iter().map(Self::from_images).collect()
    }

    /// Pods that pulled an image with one of these names, the latest first.
    pub(crate) fn pulling(starts: &PodStarts, names: &[String]) -> Vec<Self> {
        let is_named = |image: &String| {
            let name = image.parse::<Reference>().map(|name| name.canonical().to_string());
            names.contains(image) || name.is_ok_and(|name| names.contains(&name))
        };
        starts.all().into_iter().filter(|pod| pod.images.iter().any(is_named)).map(Self::from_images).collect()
    }

    fn from_images(pod: PodImages) -> Self {
        let seconds = |time: std::time::Duration| time.as_millis() as f64 / 1000.0;
        Self {
            namespace: pod.pod.namespace.to_string(),
            pod: pod.pod.name.to_string(),
            uid: pod.pod.uid.to_string(),
            images: pod.images,
            began_at: moment(pod.began),
            took_seconds: seconds(pod.took),
            pulling_seconds: seconds(pod.pulling),
            over: pod.is_over,
        }
    }
}
