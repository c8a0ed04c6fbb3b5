//! Reads a log back: what is whole is told in order, what is damaged is passed over and counted.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    path::Path,
    time::SystemTime,
};

use serde_json::Value;

use super::{
    clock,
    entry::{Entry, Group, ImageLine, InputLine, LayersLine, LostLine, RunLine, SameLine},
    line::decode,
    record::{Act, Decision, ImageInput, LayersInput, Outcome, RunHead, RunInput},
    segments::{is_readable, list},
};

/// The longest line that is looked at; no writer writes longer ones.
const LINE_LENGTH_MAX: u64 = 256 << 20;
/// Chains followed at once: the daemon's, and those of commands beside it.
const CHAINS_MAX: usize = 4;

/// What the log tells, in the order in which it was written.
#[derive(Debug)]
pub enum Told<'a> {
    /// Somebody did something.
    Act(&'a Act),
    /// Images were collected, or nothing new was decided several times.
    Run(RunTold<'a>),
    /// So much could not be written at the time.
    Lost {
        /// When writing went well again.
        at: SystemTime,
        /// Acts and collections.
        count: u64,
        /// Why.
        error: &'a str,
    },
}

/// One collection, or several that decided the same.
#[derive(Debug)]
pub struct RunTold<'a> {
    /// The last of them.
    pub head: &'a RunHead,
    /// How many.
    pub count: u64,
    /// When the first was.
    pub first: SystemTime,
    /// What was decided otherwise than before, or for the first time in a chain.
    pub changed: Vec<Decision>,
    /// The removals that were tried.
    pub outcomes: &'a [Outcome],
    /// How long the inputs were, where that was too long to keep them.
    pub left_out: Option<u64>,
    chain: Option<&'a Chain>,
}

impl RunTold<'_> {
    /// All it was decided on; `None` where that is not known any more.
    pub fn input(&self) -> Option<RunInput> {
        self.chain.map(Chain::input)
    }

    /// The images there were, by key, with names and size; `None` where that is not known any more.
    pub fn images(&self) -> Option<impl Iterator<Item = (&str, &[String], u64)>> {
        let images = &self.chain?.images;
        Some(images.iter().map(|(key, image)| (key.as_str(), image.names.as_slice(), image.size)))
    }

    /// Whether this image was there; `None` where that is not known any more.
    pub fn lists(&self, key: &str) -> Option<bool> {
        Some(self.chain?.images.contains_key(key))
    }

    /// What holds for one image after it.
    pub fn decision(&self, key: &str) -> Option<&Decision> {
        self.chain?.decisions.get(key)
    }
}

/// What was passed over while reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Lines whose checksum does not hold, or that say nothing this version knows.
    pub lines: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Segments of a newer version, or that could not be opened.
    pub segments: u64,
}

impl Damage {
    /// Whether all was read.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// One process' collections between two starts or two segments.
#[derive(Debug, Default)]
struct Chain {
    number: u64,
    common: Value,
    clocks: Vec<Value>,
    images: BTreeMap<String, ImageLine>,
    decisions: BTreeMap<String, Decision>,
    layers: Option<Layers>,
}

#[derive(Debug, Default)]
struct Layers {
    known: Vec<(String, Value)>,
    order: Vec<u32>,
    images: BTreeMap<String, Vec<u32>>,
    certainty: Value,
}

/// Tells everything in a log, oldest first. Reading takes no lock: what is being written at the moment is not told.
///
/// # Errors
/// When the folder cannot be read at all; an absent one is an empty log.
pub(super) fn read(directory: &Path, mut hear: impl FnMut(Told<'_>)) -> io::Result<Damage> {
    let mut damage = Damage::default();
    let mut chains: Vec<(String, Chain)> = Vec::new();
    for (_, path) in list(directory)? {
        match File::open(&path) {
            Ok(file) => read_segment(file, &mut chains, &mut damage, &mut hear)?,
            // Dropped meanwhile, by whoever writes.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(segment = %path.display(), %error, "passing over a segment of the decision log");
                damage.segments += 1;
            }
        }
    }
    Ok(damage)
}

fn read_segment(
    file: File,
    chains: &mut Vec<(String, Chain)>,
    damage: &mut Damage,
    hear: &mut impl FnMut(Told<'_>),
) -> io::Result<()> {
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    let mut is_first = true;
    loop {
        line.clear();
        let length = reader.by_ref().take(LINE_LENGTH_MAX).read_until(b'\n', &mut line)? as u64;
        if length == 0 {
            return Ok(());
        }
        if line.pop() != Some(b'\n') {
            // Being written, or torn and cut by the next writer.
            damage.lines += 1;
            damage.bytes += length;
            return Ok(());
        }
        if std::mem::take(&mut is_first) && is_readable(&line) {
            continue;
        }
        match decode::<Entry>(&line) {
            Some(Entry::Segment { .. }) => {
                damage.segments += 1;
                return Ok(());
            }
            Some(Entry::Act(act)) => hear(Told::Act(&act)),
            Some(Entry::Run(run)) => told_run(&run, chains, hear),
            Some(Entry::Same(same)) => told_same(&same, chains, hear),
            Some(Entry::Lost(LostLine { at, count, error, .. })) => hear(Told::Lost { at, count, error: &error }),
            None => {
                damage.lines += 1;
                damage.bytes += length;
            }
        }
    }
}

fn told_run(run: &RunLine, chains: &mut Vec<(String, Chain)>, hear: &mut impl FnMut(Told<'_>)) {
    let RunLine { chain: name, number, head, input, left_out, decided, outcomes } = run;
    let before = chains.iter().position(|(known, _)| known == name).map(|place| chains.remove(place).1);
    let chain = match (number, before, input) {
        (0, _, Some(input)) => Chain::default().with(input),
        (number, Some(chain), Some(input)) if chain.number + 1 == *number => chain.with(input),
        _ => None,
    };
    let mut changed = Vec::new();
    let chain = chain.map(|mut chain| {
        chain.number = *number;
        let keys: Vec<String> = chain.images.keys().cloned().collect();
        changed = ungroup(decided, &keys);
        chain.decisions.retain(|key, _| chain.images.contains_key(key));
        chain.decisions.extend(changed.iter().map(|decision| (decision.key.clone(), decision.clone())));
        chain
    });
    if chain.is_none() {
        changed = ungroup(decided, &[]);
    }
    let told =
        RunTold { head, count: 1, first: head.at, changed, outcomes, left_out: *left_out, chain: chain.as_ref() };
    hear(Told::Run(told));
    if let Some(chain) = chain {
        chains.truncate(CHAINS_MAX - 1);
        chains.insert(0, (name.clone(), chain));
    }
}

fn told_same(same: &SameLine, chains: &mut [(String, Chain)], hear: &mut impl FnMut(Told<'_>)) {
    let SameLine { chain: name, number, count, first, head, common, clocks } = same;
    let place = chains.iter().position(|(known, chain)| known == name && chain.number + 1 == *number);
    let chain = place.map(|place| {
        let chain = &mut chains[place].1;
        chain.number = *number;
        chain.common.clone_from(common);
        chain.clocks.clone_from(clocks);
        &*chain
    });
    let told =
        RunTold { head, count: *count, first: *first, changed: Vec::new(), outcomes: &[], left_out: None, chain };
    hear(Told::Run(told));
}

fn ungroup(groups: &[Group], keys: &[String]) -> Vec<Decision> {
    let decisions = groups.iter().flat_map(|group| {
        let placed = group.at.iter().filter_map(|place| keys.get(*place as usize));
        placed.chain(&group.keys).map(|key| Decision {
            key: key.clone(),
            goes: group.goes,
            code: group.code.clone(),
            inputs: group.inputs.clone(),
            text: group.text.clone(),
        })
    });
    decisions.collect()
}

impl Chain {
    /// `None`: what was to change is not what is known here.
    fn with(mut self, line: &InputLine) -> Option<Self> {
        self.common.clone_from(&line.common);
        self.clocks.clone_from(&line.clocks);
        let keys: Vec<&String> = self.images.keys().collect();
        let gone: Option<Vec<String>> =
            line.gone.iter().map(|place| keys.get(*place as usize).map(|key| (*key).clone())).collect();
        for key in gone? {
            self.images.remove(&key);
        }
        self.images.extend(line.set.iter().map(|image| (image.key.clone(), image.clone())));
        self.layers = match &line.layers {
            Some(layers) => Some(self.layers.unwrap_or_default().with(layers)?),
            None => None,
        };
        Some(self)
    }

    fn input(&self) -> RunInput {
        let images = self.images.values().map(|image| {
            let mut facts = image.facts.clone();
            clock::show(&mut facts, &self.clocks);
            ImageInput { key: image.key.clone(), names: image.names.clone(), size: image.size, facts }
        });
        RunInput {
            common: self.common.clone(),
            clocks: self.clocks.clone(),
            images: images.collect(),
            layers: self.layers.as_ref().map(Layers::input),
        }
    }
}

impl Layers {
    fn with(mut self, line: &LayersLine) -> Option<Self> {
        self.known.extend(line.add.iter().cloned());
        for (number, facts) in &line.change {
            self.known.get_mut(*number as usize)?.1.clone_from(facts);
        }
        if let Some(order) = &line.order {
            let length: u64 = order.iter().map(|(_, length)| u64::from(*length)).sum();
            if length > self.known.len() as u64 {
                return None;
            }
            self.order = order.iter().flat_map(|(first, length)| *first..first.saturating_add(*length)).collect();
        }
        for image in &line.gone {
            self.images.remove(image);
        }
        self.images.extend(line.set.iter().map(|(image, numbers)| (image.clone(), numbers.clone())));
        if !line.certainty.is_null() {
            self.certainty.clone_from(&line.certainty);
        }
        let known = self.known.len();
        self.order.iter().all(|number| (*number as usize) < known).then_some(self)
    }

    fn input(&self) -> LayersInput {
        let mut places = vec![u32::MAX; self.known.len()];
        for (number, place) in self.order.iter().zip(0..) {
            places[*number as usize] = place;
        }
        let placed = |number: &u32| places.get(*number as usize).copied().filter(|place| *place != u32::MAX);
        LayersInput {
            layers: self.order.iter().filter_map(|number| self.known.get(*number as usize).cloned()).collect(),
            images: self
                .images
                .iter()
                .map(|(image, numbers)| (image.clone(), numbers.iter().filter_map(placed).collect()))
                .collect(),
            certainty: self.certainty.clone(),
        }
    }
}
