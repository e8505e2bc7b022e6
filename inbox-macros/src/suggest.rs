//! "Did you mean": the nearest of the words that are allowed.

/// The candidate that `word` is most likely a misspelling of.
pub(crate) fn nearest<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    let limit = (word.chars().count() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        // A word that shares no letter with a short candidate is within any fixed limit of it.
        .filter(|(distance, candidate)| *distance <= limit && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many letters must be changed, added, removed or swapped with their neighbour to turn `from` into `to`.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    let mut previous = None;
    for (row, letter) in from.chars().enumerate() {
        let mut current = vec![row + 1];
        for (column, target) in to.iter().enumerate() {
            let at =
                |line: &[usize], column: usize| line.get(column).copied().unwrap_or(usize::MAX - 1);
            let changed = at(&last, column) + usize::from(letter != *target);
            let mut cost = changed
                .min(at(&last, column + 1) + 1)
                .min(at(&current, column) + 1);
            let swapped = column
                .checked_sub(1)
                .filter(|left| to.get(*left) == Some(&letter));
            if let Some(left) = swapped.filter(|_| previous == Some(*target)) {
                cost = cost.min(at(&before_last, left) + 1);
            }
            current.push(cost);
        }
        before_last = std::mem::replace(&mut last, current);
        previous = Some(letter);
    }
    last.last().copied().unwrap_or_default()
}
