use std::time::Duration;

use inbox_core::RetryDelays;

/// The longest delay that there is.
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long to wait between tries, and how often to try within the process.
///
/// A wait doubles with every try and is spread by full jitter above its step: the n-th lies between
/// `first * 2^(n-1)` and twice that, and never above the longest. So waits grow, are never shorter than asked
/// for, and many messages that failed together do not come back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
    pub(crate) transient_runs: u32,
    pub(crate) transient_first: Duration,
    pub(crate) transient_longest: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(5 * 60),
            transient_runs: 5,
            transient_first: Duration::from_millis(10),
            transient_longest: Duration::from_secs(1),
        }
    }
}

impl RetryPolicy {
    /// The delay after the first failure of a handler (default 1 s).
    #[must_use]
    pub const fn first_delay(mut self, delay: Duration) -> Self {
        self.first = delay;
        self
    }

    /// The longest delay after a failure of a handler (default 5 min).
    #[must_use]
    pub const fn longest_delay(mut self, delay: Duration) -> Self {
        self.longest = delay;
        self
    }

    /// How often a handler is run before a transient database error (a serialization failure, a deadlock, a
    /// busy database) counts as its failure (default 5, at least 1).
    #[must_use]
    pub const fn transient_runs(mut self, runs: u32) -> Self {
        self.transient_runs = runs;
        self
    }

    /// What contradicts itself.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.first.is_zero() || self.first > self.longest {
            problems.push(format!(
                "the first retry delay of {:?} must be above zero and at most the longest of {:?}",
                self.first, self.longest
            ));
        }
        if self.longest > DAY {
            problems.push(format!(
                "the longest retry delay of {:?} is more than a day",
                self.longest
            ));
        }
        if self.transient_runs == 0 {
            problems.push(
                "transient_runs(0): a handler is run at least once; give 1 or more".to_owned(),
            );
        }
        problems
    }

    /// The policy of one handler, which says some delays by itself.
    pub(crate) fn of_handler(mut self, delays: RetryDelays) -> Self {
        self.first = delays.first.unwrap_or(self.first);
        self.longest = delays.longest.unwrap_or(self.longest);
        self
    }

    /// The delay after the n-th counted failure of a handler.
    pub(crate) fn after_failure(&self, failures: u32) -> Duration {
        spread(self.first, self.longest, failures)
    }

    /// The wait after the n-th run that ended in a transient error.
    pub(crate) fn after_transient(&self, runs: u32) -> Duration {
        spread(self.transient_first, self.transient_longest, runs)
    }
}

/// The wait before the n-th try at something outside that is not available: a connection, a broker.
pub(crate) fn reconnect(tries: u32) -> Duration {
    spread(Duration::from_millis(100), Duration::from_secs(5), tries)
}

/// The wait before a message is tried again that is in work elsewhere, or whose transaction was lost.
pub(crate) fn elsewhere(tries: u32) -> Duration {
    spread(Duration::from_millis(200), Duration::from_secs(10), tries)
}

/// The wait before a message is tried again that met a fault of the configuration or of the schema.
pub(crate) fn misconfigured(tries: u32) -> Duration {
    spread(Duration::from_secs(1), Duration::from_secs(60), tries)
}

fn spread(first: Duration, longest: Duration, n: u32) -> Duration {
    let step = first
        .saturating_mul(2_u32.saturating_pow(n.saturating_sub(1)))
        .min(longest);
    step.saturating_add(step.mul_f64(fastrand::f64()))
        .min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_are_spread_and_stay_within_bounds() {
        let policy = RetryPolicy::default().first_delay(Duration::from_millis(200));
        for n in 1..=5 {
            let step = Duration::from_millis(200) * 2_u32.pow(n - 1);
            for _ in 0..200 {
                let wait = policy.after_failure(n);
                assert!(wait >= step && wait <= step * 2, "{n}: {wait:?}");
            }
        }
        assert_eq!(policy.after_failure(u32::MAX), policy.longest);
        assert!(
            (0..200)
                .map(|_| policy.after_failure(3))
                .collect::<std::collections::HashSet<_>>()
                .len()
                > 100
        );
    }

    #[test]
    fn what_a_handler_does_not_say_is_the_builders() {
        let policy = RetryPolicy::default()
            .first_delay(Duration::from_secs(2))
            .transient_runs(7);
        assert_eq!(policy.of_handler(RetryDelays::new()), policy);
        let own = policy.of_handler(RetryDelays::new().first(Duration::from_millis(200)));
        assert_eq!(own, policy.first_delay(Duration::from_millis(200)));
        let own = policy.of_handler(RetryDelays::new().longest(Duration::from_secs(9)));
        assert_eq!(own, policy.longest_delay(Duration::from_secs(9)));
    }
}
