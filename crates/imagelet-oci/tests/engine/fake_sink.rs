//! A sink in this process: it keeps trees by chain id, says what it was asked, and fails or waits where a test wants it.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{Digest, ImageId},
};
use imagelet_oci::{ImportError, ImportStage, ImportedImage, LayerImport, LayerSink, StagedTree, Taken};
use tokio::sync::watch;

/// A runtime's stores.
#[derive(Clone, Debug)]
pub(crate) struct FakeSink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: tempfile::TempDir,
    state: Mutex<State>,
    /// How many calls were made.
    calls: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    log: Vec<String>,
    /// By chain id.
    trees: BTreeMap<String, PathBuf>,
    taken: usize,
    images: HashMap<ImageId, Arc<ImportedImage>>,
    /// Answers by call, each for one time.
    fails: Vec<String>,
    base_gone: Vec<String>,
    /// Calls that never return.
    stalls: Vec<String>,
    mounts_no_artifacts: bool,
    /// What came with each tree: its folders without an entry, and the bytes of its blob.
    came: BTreeMap<String, (Vec<String>, Option<Vec<u8>>)>,
}

impl FakeSink {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { shared: Arc::new(Shared { folder, state: Mutex::default(), calls: watch::Sender::new(0) }) }
    }

    pub(crate) fn port(&self) -> Arc<dyn LayerSink> {
        Arc::new(self.clone())
    }

    /// The next such call fails.
    pub(crate) fn fail(&self, call: &str) {
        self.state().fails.push(call.into());
    }

    /// The next such call finds the base gone.
    pub(crate) fn lose_base(&self, call: &str) {
        self.state().base_gone.push(call.into());
    }

    /// Such calls do not return, until `None`.
    pub(crate) fn stall(&self, call: Option<&str>) {
        self.state().stalls = call.into_iter().map(str::to_owned).collect();
    }

    /// All calls since the last time.
    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    /// Waits until such a call was made.
    pub(crate) async fn called(&self, call: &str) {
        let mut calls = self.shared.calls.subscribe();
        let called = async {
            while !self.state().log.iter().any(|made| made == call) {
                calls.changed().await.expect("the sink has the sender");
            }
        };
        tokio::time::timeout(Duration::from_mins(1), called).await.unwrap_or_else(|_| panic!("no {call}"));
    }

    pub(crate) fn image(&self, id: &ImageId) -> Option<Arc<ImportedImage>> {
        self.state().images.get(id).cloned()
    }

    /// Where the tree of a chain is.
    pub(crate) fn tree(&self, chain: &str) -> Option<PathBuf> {
        self.state().trees.get(chain).cloned()
    }

    pub(crate) fn layers(&self) -> usize {
        self.state().trees.len()
    }

    /// What came with the tree of a chain.
    pub(crate) fn came(&self, chain: &str) -> (Vec<String>, Option<Vec<u8>>) {
        self.state().came.get(chain).cloned().unwrap_or_default()
    }

    /// As a runtime without image volumes.
    pub(crate) fn mount_no_artifacts(&self) {
        self.state().mounts_no_artifacts = true;
    }

    pub(crate) fn forget_layers(&self) {
        self.state().trees.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(&self, call: String) -> Result<(), RuntimeError> {
        let (stalls, fails) = {
            let mut state = self.state();
            state.log.push(call.clone());
            let fails = state.fails.iter().position(|wanted| *wanted == call).map(|at| state.fails.remove(at));
            (state.stalls.contains(&call), fails.is_some())
        };
        self.shared.calls.send_modify(|calls| *calls += 1);
        if stalls {
            std::future::pending::<()>().await;
        }
        if fails {
            return Err(RuntimeError::new(RuntimeErrorKind::Unavailable, format!("the sink fails at {call}")));
        }
        Ok(())
    }
}

/// The chain ids of layers.
pub(crate) fn chains(diff_ids: impl IntoIterator<Item = Digest>) -> Vec<String> {
    let mut chains: Vec<String> = Vec::new();
    for diff_id in diff_ids {
        let chain = match chains.last() {
            None => diff_id.to_string(),
            Some(below) => Digest::of(format!("{below} {diff_id}").as_bytes()).to_string(),
        };
        chains.push(chain);
    }
    chains
}

#[async_trait]
impl LayerSink for FakeSink {
    async fn begin(&self, image: Arc<ImportedImage>) -> Result<Arc<dyn LayerImport>, RuntimeError> {
        self.call("begin".into()).await?;
        let chains = chains(image.layers.iter().map(|layer| layer.diff_id.clone()));
        let state = self.state();
        let present = chains.iter().rposition(|chain| state.trees.contains_key(chain)).map_or(0, |top| top + 1);
        drop(state);
        let there = watch::Sender::new((0..chains.len()).map(|index| index < present).collect());
        Ok(Arc::new(FakeImport { sink: self.clone(), image, chains, present, there, is_over: Mutex::new(false) }))
    }

    fn check_mounts_artifacts(&self) -> Result<(), RuntimeError> {
        if self.state().mounts_no_artifacts {
            return Err(RuntimeError::unsupported("the sink mounts no artifacts"));
        }
        Ok(())
    }

    async fn named_artifact(&self, name: &str) -> Result<Option<(Digest, Digest)>, RuntimeError> {
        let state = self.state();
        let named = state.images.values().find(|image| image.names.iter().any(|other| other == name));
        Ok(named.map(|image| (image.root.digest.clone(), image.layers[0].digest.clone())))
    }
}

#[derive(Debug)]
struct FakeImport {
    sink: FakeSink,
    image: Arc<ImportedImage>,
    chains: Vec<String>,
    present: usize,
    there: watch::Sender<Vec<bool>>,
    is_over: Mutex<bool>,
}

impl FakeImport {
    fn over(&self) {
        *self.is_over.lock().expect("no panic") = true;
    }
}

#[async_trait]
impl LayerImport for FakeImport {
    fn present(&self) -> usize {
        self.present
    }

    async fn holds(&self, index: usize) -> Result<bool, RuntimeError> {
        self.sink.call(format!("holds {index}")).await?;
        let is_there = self.sink.tree(&self.chains[index]).is_some();
        if is_there {
            self.there.send_modify(|there| there[..=index].fill(true));
        }
        Ok(is_there)
    }

    async fn take(&self, index: usize, tree: StagedTree) -> Result<Taken, RuntimeError> {
        let mut there = self.there.subscribe();
        there.wait_for(|there| there[..index].iter().all(|is_there| *is_there)).await.expect("it has the sender");
        let call = format!("take {index}");
        self.sink.call(call.clone()).await?;
        let mut state = self.sink.state();
        if let Some(at) = state.base_gone.iter().position(|wanted| *wanted == call) {
            state.base_gone.remove(at);
            return Ok(Taken::BaseGone);
        }
        let chain = self.chains[index].clone();
        let implicit = tree.implicit.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
        state.came.insert(chain.clone(), (implicit, tree.blob.map(|path| std::fs::read(path).expect("a blob"))));
        if state.trees.contains_key(&chain) {
            std::fs::remove_dir_all(&tree.folder).expect("the tree is there");
        } else {
            let home = self.sink.shared.folder.path().join(format!("{}", state.taken));
            state.taken += 1;
            std::fs::rename(&tree.folder, &home).expect("the tree is there");
            state.trees.insert(chain, home);
        }
        drop(state);
        self.there.send_modify(|there| there[index] = true);
        Ok(Taken::Committed)
    }

    async fn finish(&self) -> Result<ImageId, ImportError> {
        self.sink.call("finish".into()).await.map_err(|error| ImportStage::Recorded.failed(error))?;
        assert!(self.there.borrow().iter().all(|is_there| *is_there), "a layer is missing");
        let id = ImageId::new(self.image.config.digest.as_str());
        self.sink.state().images.insert(id.clone(), Arc::clone(&self.image));
        self.over();
        Ok(id)
    }

    async fn abandon(&self) {
        let _ = self.sink.call("abandon".into()).await;
        self.over();
    }
}

impl Drop for FakeImport {
    fn drop(&mut self) {
        if !*self.is_over.lock().expect("no panic") {
            self.sink.state().log.push("dropped".into());
            self.sink.shared.calls.send_modify(|calls| *calls += 1);
        }
    }
}
