//! Addresses of brokers as people may see them.

/// A url to show: what could be a password is left out, also where the url is none.
pub(super) fn without_password(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if scheme.chars().all(|c| c.is_ascii_alphanumeric()) => (scheme, rest),
        _ => ("", url),
    };
    match rest.rsplit_once('@') {
        Some((user, place)) => {
            let user = user.split(':').next().unwrap_or_default();
            if scheme.is_empty() {
                format!("`***@{place}`")
            } else {
                format!("`{scheme}://{user}:***@{place}`")
            }
        }
        // `user:password` without a host looks like `host:port`, so only a port is shown.
        None => match rest.split_once(':') {
            Some((_, after))
                if !after
                    .split(['/', '?'])
                    .next()
                    .unwrap_or_default()
                    .bytes()
                    .all(|byte| byte.is_ascii_digit()) =>
            {
                "`***`".to_owned()
            }
            _ => format!("`{url}`"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_ever_shown() {
        for (url, shown) in [
            ("amqp://u:secret@h:1/v", "`amqp://u:***@h:1/v`"),
            ("amqp://u:sec@ret/@h", "`amqp://u:***@h`"),
            ("u:secret@h", "`***@h`"),
            ("amqp://u:secret", "`***`"),
            ("amqp:u:secret", "`***`"),
            ("amqp://h:5672/v", "`amqp://h:5672/v`"),
            ("amqp://h", "`amqp://h`"),
            ("", "``"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
