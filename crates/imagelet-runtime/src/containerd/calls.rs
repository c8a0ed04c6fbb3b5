//! The calls to containerd that imagelet makes.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, transport::Channel};

use crate::{
    containerd::{
        LeaseId, Many, One,
        bounded::ANSWER,
        client::{Answer, ContainerdClient, path},
        v1::{content, images, introspection, leases, snapshots, types},
    },
    wire::{self, BoundedCodec, Query, Reply},
};

const WRITE_BYTES_MAX: u64 = 1 << 20;
const WRITE_STEPS_MAX: usize = 2;

/// A value of `snapshots.Info.kind`.
pub(crate) const COMMITTED: i32 = 3;
/// Values of `content.WriteContentRequest.action`.
const WRITE: i32 = 1;
const COMMIT: i32 = 2;

impl ContainerdClient {
    pub async fn namespaces(&self) -> Answer<Vec<String>> {
        self.ask_many("Namespaces.List", "", ()).await
    }

    /// Creates a lease. The first garbage collection after `lifetime` removes the lease.
    pub async fn create_lease(&self, lease: &LeaseId, lifetime: Duration) -> Answer<()> {
        let labels = BTreeMap::from([("containerd.io/gc.expire".to_owned(), expiry(SystemTime::now(), lifetime))]);
        let message = leases::CreateRequest { id: lease.as_str().to_owned(), labels };
        self.ask("Leases.Create", lease.as_str(), message).await
    }

    /// Deletes a lease. With `collects`, containerd answers after a garbage collection. An absent lease is no error.
    pub async fn delete_lease(&self, lease: &LeaseId, collects: bool) -> Answer<()> {
        let message = leases::DeleteRequest { id: lease.as_str().to_owned(), sync: collects };
        self.ask_to_remove("Leases.Delete", lease.as_str(), message).await
    }

    pub async fn leases(&self) -> Answer<Vec<leases::Lease>> {
        self.ask_many("Leases.List", "", ()).await
    }

    /// The resources that a lease protects. The list is empty if the lease is absent.
    pub async fn leased(&self, lease: &str) -> Answer<Vec<leases::Resource>> {
        let listed = self.ask_many("Leases.ListResources", lease, lease.to_owned());
        Ok(present(listed.await)?.unwrap_or_default())
    }

    /// Adds a resource, which may be absent, to a lease. The kind `content` also protects the content to which the
    /// blob's labels refer. The kind `snapshots/SNAPSHOTTER` also protects the snapshot's parents.
    pub async fn hold(&self, lease: &LeaseId, kind: &str, id: &str) -> Answer<()> {
        let resource = leases::Resource { id: id.to_owned(), r#type: kind.to_owned() };
        let message = leases::AddResourceRequest { id: lease.as_str().to_owned(), resource: Some(resource) };
        self.ask("Leases.AddResource", id, message).await
    }

    pub async fn snapshot(&self, snapshotter: &str, key: &str) -> Answer<Option<snapshots::Info>> {
        self.ask_one("Snapshots.Stat", key, of_snapshot(snapshotter, key)).await
    }

    pub async fn prepare(&self, message: snapshots::PrepareSnapshotRequest) -> Answer<Vec<types::Mount>> {
        let key = message.key.clone();
        self.ask_many("Snapshots.Prepare", &key, message).await
    }

    pub async fn commit(&self, message: snapshots::CommitSnapshotRequest) -> Answer<()> {
        let name = message.name.clone();
        self.ask("Snapshots.Commit", &name, message).await
    }

    /// Removes a snapshot. An absent snapshot is no error.
    pub async fn remove_snapshot(&self, snapshotter: &str, key: &str) -> Answer<()> {
        self.ask_to_remove("Snapshots.Remove", key, of_snapshot(snapshotter, key)).await
    }

    pub async fn snapshots(&self, snapshotter: &str) -> Answer<Vec<snapshots::Info>> {
        self.list("Snapshots.List", snapshotter, snapshotter.to_owned()).await
    }

    /// The disk usage of a snapshot without its parents. For an uncommitted snapshot, containerd walks the file tree.
    pub async fn usage(&self, snapshotter: &str, key: &str) -> Answer<Option<snapshots::UsageResponse>> {
        present(self.ask("Snapshots.Usage", key, of_snapshot(snapshotter, key)).await)
    }

    pub async fn content(&self, digest: &str) -> Answer<Option<content::Info>> {
        self.ask_one("Content.Info", digest, digest.to_owned()).await
    }

    pub async fn label_content(&self, digest: &str, labels: BTreeMap<String, String>) -> Answer<()> {
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        let info = content::Info { digest: digest.to_owned(), labels, ..content::Info::default() };
        let update_mask = Some(types::FieldMask { paths });
        let message = content::UpdateRequest { info: Some(info), update_mask };
        self.ask("Content.Update", digest, message).await
    }

    pub async fn contents(&self) -> Answer<Vec<content::Info>> {
        self.list("Content.List", "", ()).await
    }

    pub(crate) async fn contents_with(&self, label: &str) -> Answer<Vec<content::Info>> {
        self.list("Content.List", label, format!("labels.{label:?}")).await
    }

    pub async fn write_content(
        &self,
        digest: &str,
        size: u64,
        bytes: impl AsyncRead + Send + Unpin,
        labels: BTreeMap<String, String>,
    ) -> Answer<()> {
        let (steps, messages) = mpsc::channel(WRITE_STEPS_MAX);
        let read = async |channel: Channel, request| {
            let codec = BoundedCodec::<_, content::WriteContentResponse>::new(ANSWER);
            let mut answers =
                wire::ready(channel).await?.streaming(request, path("Content.Write"), codec).await?.into_inner();
            let mut written = None;
            while let Some(answer) = answers.message().await? {
                if answer.action == COMMIT {
                    written = Some(answer.digest);
                }
            }
            Ok(written)
        };
        let call = self.read("Content.Write", digest, ReceiverStream::new(messages), read);
        // If the call ends early, it drops the receiver, and `send_steps` stops.
        let (sent, written) = tokio::join!(send_steps(steps, digest, size, bytes, &labels), call);
        let unexpected = |why: &str| Err(self.unexpected("Content.Write", digest, why));
        if let Err(error) = sent {
            return unexpected(&format!("the bytes cannot be read: {error}"));
        }
        match written? {
            Some(written) if written == digest => Ok(()),
            Some(_) => unexpected("it committed another digest"),
            None => unexpected("it ended without a commit"),
        }
    }

    pub async fn image(&self, name: &str) -> Answer<Option<images::Image>> {
        self.ask_one("Images.Get", name, name.to_owned()).await
    }

    pub async fn images(&self) -> Answer<Vec<images::Image>> {
        self.ask_many("Images.List", "", ()).await
    }

    pub async fn create_image(&self, image: images::Image) -> Answer<()> {
        let name = image.name.clone();
        self.ask("Images.Create", &name, One { item: Some(image) }).await
    }

    /// Sets the target and the labels of `image` on its record. The record keeps its other labels.
    pub async fn update_image(&self, image: images::Image) -> Answer<()> {
        let name = image.name.clone();
        let labels = image.labels.keys().map(|key| format!("labels.{key}"));
        let paths = std::iter::once("target".to_owned()).chain(labels).collect();
        let message = images::UpdateImageRequest { image: Some(image), update_mask: Some(types::FieldMask { paths }) };
        self.ask("Images.Update", &name, message).await
    }

    /// Deletes an image record. A later garbage collection removes the content. An absent record is no error.
    pub(crate) async fn delete_image(&self, name: &str) -> Answer<()> {
        self.ask_to_remove("Images.Delete", name, name.to_owned()).await
    }

    pub async fn snapshotters(&self) -> Answer<Vec<introspection::Plugin>> {
        self.plugins("io.containerd.snapshotter.v1").await
    }

    pub(crate) async fn plugins(&self, kind: &str) -> Answer<Vec<introspection::Plugin>> {
        let message = introspection::PluginsRequest { filters: vec![format!("type=={kind}")] };
        self.ask_many("Introspection.Plugins", "", message).await
    }

    async fn ask_one<T: Reply>(&self, call: &'static str, subject: &str, message: impl Query) -> Answer<Option<T>> {
        Ok(present(self.ask(call, subject, message).await)?.and_then(|found: One<T>| found.item))
    }

    async fn ask_many<T: Reply>(&self, call: &'static str, subject: &str, message: impl Query) -> Answer<Vec<T>> {
        self.ask(call, subject, message).await.map(|found: Many<T>| found.items)
    }

    async fn ask_to_remove(&self, call: &'static str, subject: &str, message: impl Query) -> Answer<()> {
        present(self.ask(call, subject, message).await).map(|_: Option<()>| ())
    }
}

fn of_snapshot(snapshotter: &str, key: &str) -> snapshots::SnapshotRequest {
    snapshots::SnapshotRequest { snapshotter: snapshotter.to_owned(), key: key.to_owned() }
}

fn expiry(now: SystemTime, lifetime: Duration) -> String {
    Timestamp::try_from(now + lifetime).unwrap_or(Timestamp::MAX).to_string()
}

/// Sends a blob in several messages. The last message has the last bytes and commits the blob. Stops if the call ends.
async fn send_steps(
    steps: mpsc::Sender<content::WriteContentRequest>,
    digest: &str,
    size: u64,
    mut bytes: impl AsyncRead + Send + Unpin,
    labels: &BTreeMap<String, String>,
) -> io::Result<()> {
    let length = |bytes: u64| i64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge));
    let total = length(size)?;
    // containerd locks a write by its name. With a unique name, no other import of the same blob blocks this write.
    let name = format!("{}-{digest}", LeaseId::unique().as_str());
    let mut offset = 0;
    loop {
        let step_size = (size - offset).min(WRITE_BYTES_MAX);
        let mut data = vec![0; usize::try_from(step_size).expect("a step is short")];
        bytes.read_exact(&mut data).await?;
        let is_last = offset + step_size == size;
        let step = content::WriteContentRequest {
            action: if is_last { COMMIT } else { WRITE },
            r#ref: name.clone(),
            total,
            expected: digest.to_owned(),
            offset: length(offset)?,
            data,
            labels: if is_last { labels.clone() } else { BTreeMap::new() },
        };
        if steps.send(step).await.is_err() || is_last {
            return Ok(());
        }
        offset += step_size;
    }
}

fn present<A>(answer: Answer<A>) -> Answer<Option<A>> {
    match answer {
        Err(error) if error.code() == Code::NotFound => Ok(None),
        answer => answer.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_expires_in_the_form_of_rfc_3339() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        assert_eq!(expiry(now, Duration::from_hours(24)), "2023-11-15T22:13:20Z");
    }

    #[tokio::test]
    async fn a_write_is_cut_into_steps_and_ends_with_one_commit() {
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let step = WRITE_BYTES_MAX;
        for (size, count) in [(0, 1), (1, 1), (step, 1), (step + 1, 2), (3 * step, 3)] {
            let bytes = vec![7; usize::try_from(size).unwrap()];
            let (sender, mut receiver) = mpsc::channel(10);
            send_steps(sender, "sha256:x", size, &bytes[..], &labels).await.unwrap();
            let mut messages = Vec::new();
            while let Some(message) = receiver.recv().await {
                messages.push(message);
            }
            assert_eq!(messages.len(), count, "{size}");
            let (last, first) = messages.split_last().unwrap();
            assert_eq!((last.action, &last.labels), (COMMIT, &labels));
            assert!(first.iter().all(|step| step.action == WRITE && step.labels.is_empty()));
            let mut offset = 0;
            for step in &messages {
                assert_eq!((step.offset, &step.r#ref), (offset, &messages[0].r#ref));
                assert_eq!(step.total, i64::try_from(size).unwrap());
                offset += i64::try_from(step.data.len()).unwrap();
            }
            assert_eq!(offset, i64::try_from(size).unwrap());
        }
        let (sender, _receiver) = mpsc::channel(10);
        let short = send_steps(sender, "sha256:x", 8, &[7; 7][..], &labels).await.unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
    }
}
