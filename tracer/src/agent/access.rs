//! The readers of the metrics: owners of a token whom the API server allows to `get` the path `/metrics`.
//!
//! Owns the two reviews and how long their answers count. Keeps hashes of tokens, never a token.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use ring::digest::{SHA256, digest};
use tokio::sync::{OnceCell, Semaphore};

use crate::{cluster, error::sentence};

/// How long an answer counts: a token that is withdrawn reads for at most this long.
const ALLOWED_FOR: Duration = Duration::from_mins(1);
/// How long an allowed token still reads while the API server cannot review it: the metrics then show that it is lost.
const UNREVIEWED_FOR: Duration = Duration::from_hours(1);
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// The most answers kept.
const MAX_ANSWERS: usize = 256;
/// The most reviews at a time: clients with invented tokens must not burden the API server.
const MAX_REVIEWS: usize = 4;
/// The limit of both reviews.
const REVIEW_LIMIT: Duration = Duration::from_secs(10);
/// A longer text is no token.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// The answer to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Allowed,
    /// The token is valid, and its owner may not read.
    Forbidden,
    /// The token is not valid.
    Unknown,
}

impl Decision {
    const fn counts_for(self) -> Duration {
        match self {
            Self::Allowed => ALLOWED_FOR,
            Self::Forbidden | Self::Unknown => REFUSED_FOR,
        }
    }

    const fn kept_for(self) -> Duration {
        match self {
            Self::Allowed => UNREVIEWED_FOR,
            Self::Forbidden | Self::Unknown => REFUSED_FOR,
        }
    }
}

/// Reviews tokens.
pub(crate) struct Reviewer {
    access: cluster::Access,
    client: OnceCell<Client>,
    answers: Mutex<HashMap<[u8; 32], (Instant, Decision)>>,
    places: Semaphore,
}

impl std::fmt::Debug for Reviewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviewer").field("access", &self.access).finish_non_exhaustive()
    }
}

impl Reviewer {
    pub(crate) fn new(access: cluster::Access) -> Self {
        Self {
            access,
            client: OnceCell::new(),
            answers: Mutex::default(),
            places: Semaphore::new(MAX_REVIEWS),
        }
    }

    /// Decides about the value of an `Authorization` header.
    ///
    /// # Errors
    ///
    /// If the API server cannot review the token, with the reason.
    pub(crate) async fn decide(&self, header: Option<&str>) -> Result<Decision, String> {
        let token = header.and_then(|header| header.split_once(' ')).and_then(|(scheme, token)| {
            let token = token.trim();
            let is_token = !token.is_empty() && token.len() <= MAX_TOKEN_BYTES;
            (scheme.eq_ignore_ascii_case("bearer") && is_token).then_some(token)
        });
        let Some(token) = token else { return Ok(Decision::Unknown) };
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        if let Some(known) = self.known(&key) {
            return Ok(known);
        }
        let review = async {
            let _place = self.places.acquire().await.map_err(|error| error.to_string())?;
            if let Some(known) = self.known(&key) {
                return Ok(known);
            }
            let decision = self.review(token).await?;
            self.keep(key, decision, Instant::now());
            Ok(decision)
        };
        let decided = match tokio::time::timeout(REVIEW_LIMIT, review).await {
            Ok(decided) => decided,
            Err(_) => Err(format!("no answer within {} s", REVIEW_LIMIT.as_secs())),
        };
        decided.or_else(|why| self.last_allowed(&key).ok_or(why))
    }

    fn known(&self, key: &[u8; 32]) -> Option<Decision> {
        self.answer(key, Decision::counts_for)
    }

    /// The earlier answer to a token that the API server cannot review now.
    fn last_allowed(&self, key: &[u8; 32]) -> Option<Decision> {
        self.answer(key, Decision::kept_for).filter(|decision| *decision == Decision::Allowed)
    }

    /// The last answer, if it is no older than such an answer may be.
    fn answer(&self, key: &[u8; 32], within: fn(Decision) -> Duration) -> Option<Decision> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, decision) = answers.get(key)?;
        (at.elapsed() < within(*decision)).then_some(*decision)
    }

    fn keep(&self, key: [u8; 32], decision: Decision, now: Instant) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|_, (at, decision)| now.duration_since(*at) < decision.kept_for());
        if answers.len() >= MAX_ANSWERS {
            answers.clear();
        }
        answers.insert(key, (now, decision));
    }

    async fn client(&self) -> Result<Client, String> {
        let connect = || async { self.access.client().await.map(|(client, _)| client) };
        self.client.get_or_try_init(connect).await.cloned().map_err(|error| sentence(&error))
    }

    async fn review(&self, token: &str) -> Result<Decision, String> {
        let client = self.client().await?;
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await;
        let status = answer.map_err(|error| cluster::request_error(&error))?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let Some(UserInfo { username: Some(username), groups, uid, extra }) = user else {
            return Ok(Decision::Unknown);
        };
        let path = NonResourceAttributes { path: Some("/metrics".to_owned()), verb: Some("get".to_owned()) };
        let spec = SubjectAccessReviewSpec {
            non_resource_attributes: Some(path),
            user: Some(username),
            groups,
            uid,
            extra,
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviews: Api<SubjectAccessReview> = Api::all(client);
        let answer = reviews.create(&PostParams::default(), &review).await;
        let status = answer.map_err(|error| cluster::request_error(&error))?.status.unwrap_or_default();
        let allowed = status.allowed && status.denied != Some(true);
        Ok(if allowed { Decision::Allowed } else { Decision::Forbidden })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The alert on a lost API server needs the metrics of those hours.
    #[test]
    fn an_allowed_token_still_reads_while_nobody_can_review_it() {
        let reviewer = Reviewer::new(cluster::Access::default());
        let (allowed, refused) = ([1; 32], [2; 32]);
        let ago = |minutes: u64| Instant::now().checked_sub(Duration::from_mins(minutes)).unwrap();
        reviewer.keep(allowed, Decision::Allowed, ago(5));
        reviewer.keep(refused, Decision::Forbidden, ago(5));
        assert_eq!((reviewer.known(&allowed), reviewer.known(&refused)), (None, None));
        assert_eq!(reviewer.last_allowed(&allowed), Some(Decision::Allowed));
        assert_eq!(reviewer.last_allowed(&refused), None);
        reviewer.keep(allowed, Decision::Allowed, ago(61));
        assert_eq!(reviewer.last_allowed(&allowed), None);
    }
}
