//! An artifact's file, in one pass: socket → digest → the file. The unfinished file is a partial blob, which a later
//! attempt continues. The whole file is moved into its layer, so its bytes are written once.

use std::sync::Arc;

use imagelet_core::error::RuntimeError;
use twox_hash::xxhash3_128::Hasher;

use super::fetch::{Fetched, Intake, LayerAttempt, ResumeSource, copy_to};
use crate::{
    registry::ReaderWait,
    store::{BlobWriter, KeptBytes, StagedLayer, storage_error},
    unpack::WholeFile,
};

impl LayerAttempt<'_> {
    /// Fetches a file. Returns `None` if the layer gave its place away; the bytes so far are on the disk.
    pub(super) async fn run_file(
        mut self,
        path: &str,
        on_disk: Option<KeptBytes>,
        writer: BlobWriter,
    ) -> Result<Option<StagedLayer>, RuntimeError> {
        let (job, written_bytes) = (self.job, &self.job.staging.written_bytes);
        let known = on_disk.as_ref().filter(|kept| kept.is_in_copy);
        let known = known.map_or(0, |kept| kept.length);
        written_bytes.restart(known, known);
        let reader_wait = ReaderWait::default();
        if !writer.resumption.is_allowed() {
            self.resumes_from = ResumeSource::Nothing;
        }
        let (copy, copying) = copy_to(writer, written_bytes.clone(), Some(reader_wait.clone()));
        let mut intake = Intake::new(job.descriptor.digest.algorithm(), None, reader_wait, Some(copy), 0);
        intake.content = Some(Hasher::new());
        let fetched = self.fetch(on_disk, intake).await;
        let written = copying.await?;
        let fetched = fetched?;
        let mut writer = written.map_err(|error| storage_error(format!("could not write file `{path}`"), error))?;
        if fetched == Fetched::GaveWay {
            writer.keep_any_length();
            return Ok(None);
        }
        let (path, content, memory) = (path.to_owned(), self.content.unwrap_or_default(), Arc::clone(self.memory));
        let placed = job.on_thread(move |job| {
            let file = WholeFile { path: &path, from: writer.close(), size: job.descriptor.size, content };
            job.place_file(&file, &memory)
        });
        placed.await?.map(Some)
    }
}
