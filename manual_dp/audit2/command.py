def audit_script(*a): pass
