//! Answers CRI calls about the images' file systems, even while the runtime does not answer.

use std::{
    path::PathBuf,
    sync::Mutex,
    time::{Duration, SystemTime},
};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    lock::locked,
    ports::{FilesystemUsage, ImageFilesystems},
};
use tokio::time::Instant;

/// How long a call waits for the runtime. After it, the last answer is repeated: a kubelet needs an answer to start.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long an answer is cached. A kubelet calls for each round of statistics, and each call measures the store.
const FRESH: Duration = Duration::from_secs(1);
/// How long a silent runtime's last answer is repeated. Then calls fail: a kubelet must not decide by old figures.
const SILENCE_MAX: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(super) struct FilesystemAnswers {
    state: Mutex<Answered>,
    /// The directory that is reported before the first answer. It exists during the daemon's whole run.
    place: PathBuf,
}

#[derive(Debug, Default)]
struct Answered {
    last: Option<ImageFilesystems>,
    fresh_until: Option<Instant>,
    silent_since: Option<Instant>,
}

impl FilesystemAnswers {
    pub(super) fn new(place: PathBuf) -> Self {
        Self { state: Mutex::default(), place }
    }

    pub(super) fn invalidate(&self) {
        locked(&self.state).fresh_until = None;
    }

    pub(super) fn last(&self) -> ImageFilesystems {
        let known = locked(&self.state).last.clone();
        known.unwrap_or_else(|| {
            let nothing = FilesystemUsage::nothing(self.place.clone(), SystemTime::now());
            ImageFilesystems { images: vec![nothing.clone()], containers: vec![nothing], ..ImageFilesystems::default() }
        })
    }

    /// Calls the runtime by `ask` if the cached answer has expired. Fails after [`SILENCE_MAX`] without an answer.
    pub(super) async fn answer(
        &self,
        ask: impl Future<Output = Result<ImageFilesystems, RuntimeError>>,
    ) -> Result<ImageFilesystems, RuntimeError> {
        let now = Instant::now();
        {
            let state = locked(&self.state);
            if let (Some(last), Some(until)) = (&state.last, state.fresh_until)
                && now < until
            {
                return Ok(last.clone());
            }
        }
        let error = match tokio::time::timeout(ANSWER_MAX, ask).await {
            Ok(Ok(answer)) if !answer.images.is_empty() => {
                *locked(&self.state) =
                    Answered { last: Some(answer.clone()), fresh_until: Some(now + FRESH), silent_since: None };
                return Ok(answer);
            }
            Ok(Ok(_)) => RuntimeError::other("the runtime reports no file system of images"),
            Ok(Err(error)) => error,
            Err(_) => RuntimeError::new(
                RuntimeErrorKind::TimedOut,
                format!("the runtime did not answer within {} s", ANSWER_MAX.as_secs()),
            ),
        };
        let silence = locked(&self.state).silent_since.get_or_insert(now).elapsed();
        if silence > SILENCE_MAX {
            let message = format!(
                "the runtime has not reported its file systems for {} s; an older answer is repeated for {} s",
                silence.as_secs(),
                SILENCE_MAX.as_secs()
            );
            return Err(RuntimeError::new(RuntimeErrorKind::Unavailable, message).caused_by(error));
        }
        let error = error.chain();
        tracing::warn!(error, "the runtime does not report its file systems; the last answer is repeated");
        Ok(self.last())
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn usage(used: u64) -> ImageFilesystems {
        let place = FilesystemUsage {
            used: imagelet_core::image::ByteSize(used),
            ..FilesystemUsage::nothing("/images".into(), SystemTime::UNIX_EPOCH)
        };
        ImageFilesystems { images: vec![place], ..ImageFilesystems::default() }
    }

    fn used(answer: Result<ImageFilesystems, RuntimeError>) -> u64 {
        answer.expect("an answer").images[0].used.0
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_repeated_for_a_moment_and_not_after_a_change() {
        let answers = FilesystemAnswers::new("/store".into());
        assert_eq!(used(answers.answer(ready(Ok(usage(1)))).await), 1);
        assert_eq!(used(answers.answer(ready(Ok(usage(2)))).await), 1, "fresh");
        answers.invalidate();
        assert_eq!(used(answers.answer(ready(Ok(usage(3)))).await), 3, "changed");
        tokio::time::advance(FRESH).await;
        assert_eq!(used(answers.answer(ready(Ok(usage(4)))).await), 4, "old");
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_is_silent_for_longer_than_a_minute_is_unavailable_until_it_answers() {
        let answers = FilesystemAnswers::new("/store".into());
        let silent = || async { answers.answer(pending()).await };
        let refused = || async {
            let error = RuntimeError::new(RuntimeErrorKind::Unavailable, "connection refused");
            answers.answer(ready(Err(error))).await
        };
        assert_eq!(used(refused().await), 0, "a kubelet starts without the runtime");
        assert_eq!(used(answers.answer(ready(Ok(usage(7)))).await), 7);
        // Whatever the age of the last answer, the silence begins with the first unanswered call.
        tokio::time::advance(Duration::from_hours(1)).await;
        let begin = Instant::now();
        assert_eq!(used(silent().await), 7);
        while Instant::now() + ANSWER_MAX <= begin + SILENCE_MAX {
            assert_eq!(used(silent().await), 7, "{:?}", begin.elapsed());
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        for unanswered in
            [silent().await, refused().await, answers.answer(ready(Ok(ImageFilesystems::default()))).await]
        {
            let error = unanswered.expect_err("silent for longer than a minute");
            assert_eq!(error.kind(), RuntimeErrorKind::Unavailable);
            assert!(error.to_string().contains("for 6") && error.to_string().contains("60 s"), "{error}");
        }
        assert_eq!(used(answers.answer(ready(Ok(usage(8)))).await), 8, "it answers again");
        assert_eq!(used(silent().await), 8, "a new silence has a minute of its own");
    }
}
