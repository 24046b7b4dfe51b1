"""What was asked, and what it has become: records without behaviour."""
